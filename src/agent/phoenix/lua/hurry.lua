-- hurry.lua: queue now what waits for its next attempt, however long it would still have to wait.
-- KEYS  of the queue
-- ARGV  ids of jobs that failed before
-- -> the number queued
-- What waits for something else than time (a circuit, the end of a pause), or waits no more, stays where it is.

local keys = queue_keys()
local moved = 0
for _, id in ipairs(ARGV) do
    local due = tonumber(redis.call('ZSCORE', keys.incomplete, id) or 0)
    if due > 0 and due < FAR_FUTURE then
        redis.call('RPUSH', keys.queued, id)
        redis.call('ZADD', keys.incomplete, 0, id)
        moved = moved + 1
    end
end
return moved
