-- abort.lua: end a job that somebody wants to be over, wherever it is.
-- KEYS  of the queue
-- ARGV  job id prefix, id, the aborted job's text, its ttl (ms), the job's text while it is being aborted, what the
--       control plane is told of one that was not running, or ''
-- -> 'aborted' (it was not running) | 'asked' (its worker will end it) | 'over' (there was nothing to end)
-- Invariant: a lock whose lease lives is another queue's, where the same record runs; it stays.

local keys = queue_keys()
local id = ARGV[2]
if not redis.call('ZSCORE', keys.incomplete, id) then return 'over' end
local till = redis.call('ZSCORE', keys.active, id)
local now = math.floor(clock() / 1000)
if till and tonumber(till) > now then
    redis.call('SADD', keys.aborts, id)
    redis.call('SET', id, ARGV[5])
    redis.call('PUBLISH', id, 'aborting')
    return 'asked'
end
local job = till and read(id)
local service = job and service_of(job)
end_aborted(keys, id, ARGV[3], ARGV[4], ARGV[6])
if service then free_if_over(lock_key(service, record_of(id, ARGV[1])), now) end
return 'aborted'
