-- supersede.lua: give a job that waits the text of a newer one of its record, which then need not wait for the old one.
-- KEYS  of the queue
-- ARGV  id, the job's text as it was read, service, record id, the newer job's text
-- -> 'waits' (it has the newer text) | 'runs' (or has changed since it was read) | 'asked' (it answers for a stream's
--    entries, whose arguments are somebody's own)
-- Invariant: a job that runs, or that is over, is left as it is. What waits for the clock is queued: it is another job's
-- failure that it waits for. What waits for a circuit, or for a pause to end, stays where it is.

local keys = queue_keys()
local id = ARGV[1]
local due = tonumber(redis.call('ZSCORE', keys.incomplete, id) or -1)
if due < 0 or redis.call('ZSCORE', keys.active, id) or redis.call('GET', id) ~= ARGV[2] then return 'runs' end
if redis.pcall('HGET', entries_key(ARGV[3]), ARGV[4]) then return 'asked' end
redis.call('SET', id, ARGV[5])
redis.call('HDEL', keys.deaths, id)
if due > 0 and due < FAR_FUTURE then
    redis.call('RPUSH', keys.queued, id)
    redis.call('ZADD', keys.incomplete, 0, id)
end
return 'waits'
