-- adopt.lua: take over a queue that plain SAQ workers left: their list of running jobs becomes ours.
-- KEYS  of the queue, then the set of all tasks        ARGV  the tasks of the worker that asks
-- -> the number of jobs put back at the head of the queue
-- From then on `active` is a sorted set that is never empty: the server refuses plain workers. Only for when none runs.

local keys = queue_keys()
if #ARGV > 0 then redis.call('SADD', KEYS[9], unpack(ARGV)) end
if redis.call('TYPE', keys.active).ok ~= 'list' then
    redis.call('ZADD', keys.active, 'NX', 'inf', 'guard')
    return 0
end
demand(keys.queued, 'list')
demand(keys.incomplete, 'zset')
local ids = redis.call('LRANGE', keys.active, 0, -1)
redis.call('DEL', keys.active)
redis.call('ZADD', keys.active, 'inf', 'guard')
local moved = 0
for _, id in ipairs(ids) do
    if redis.call('EXISTS', id) == 1 and redis.call('ZSCORE', keys.incomplete, id) then
        redis.call('ZADD', keys.incomplete, 0, id)
        redis.call('LPUSH', keys.queued, id)
        moved = moved + 1
    end
end
return moved
