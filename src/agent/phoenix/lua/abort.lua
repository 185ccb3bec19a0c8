-- abort.lua: end a job that somebody wants to be over, wherever it is.
-- KEYS  of the queue
-- ARGV  job id prefix, id, the aborted job's text, its ttl (ms), the job's text while it is being aborted, what the
--       control plane is told of one that was not running, or ''
-- -> 'aborted' (it was not running) | 'asked' (its worker will end it) | 'over' (there was nothing to end)

local keys = queue_keys()
local id = ARGV[2]
if not redis.call('ZSCORE', keys.incomplete, id) then return 'over' end
local till = redis.call('ZSCORE', keys.active, id)
if till and tonumber(till) > math.floor(clock() / 1000) then
    redis.call('SADD', keys.aborts, id)
    redis.call('SET', id, ARGV[5])
    redis.call('PUBLISH', id, 'aborting')
    return 'asked'
end
local job = redis.call('GET', id)
local service = job and service_of(job)
if till and service then redis.call('DEL', lock_key(service, record_of(id, ARGV[1]))) end
end_aborted(keys, id, ARGV[3], ARGV[4], ARGV[6])
return 'aborted'
