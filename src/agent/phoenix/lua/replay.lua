-- replay.lua: put a job that was set aside back on its queue.
-- KEYS  the list of letters, then of the queue: queued, incomplete, deaths
-- ARGV  the letter as it stands there, job id, the job's text
-- -> 'queued' | 'gone' (somebody was faster) | 'waiting' (such a job waits or runs already; the letter is dropped)
-- Invariant: the letter leaves the list in the step in which its job enters the queue.

local id = ARGV[2]
local queued, incomplete, deaths = KEYS[2], KEYS[3], KEYS[4]
demand(queued, 'list')
demand(incomplete, 'zset')
demand(deaths, 'hash')
if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 0 then return 'gone' end
if redis.call('ZSCORE', incomplete, id) then return 'waiting' end
redis.call('SET', id, ARGV[3])
redis.call('ZADD', incomplete, 0, id)
redis.call('RPUSH', queued, id)
redis.call('HDEL', deaths, id)
return 'queued'
