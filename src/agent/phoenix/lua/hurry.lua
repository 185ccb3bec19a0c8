-- hurry.lua: queue now what waits for its next attempt, however long it would still have to wait.
-- KEYS  of the queue
-- ARGV  most to move
-- -> the number moved
-- What waits for something else than time (a circuit, the end of a pause) stays where it is.

local keys = queue_keys()
local ids = redis.call('ZRANGEBYSCORE', keys.incomplete, '(0', '(' .. FAR_FUTURE, 'LIMIT', 0, tonumber(ARGV[1]))
for _, id in ipairs(ids) do
    redis.call('ZADD', keys.incomplete, 0, id)
    redis.call('RPUSH', keys.queued, id)
end
return #ids
