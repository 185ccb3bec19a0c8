-- unpark.lua: put jobs that wait for a circuit, or for a pause to end, back on their queues.
-- KEYS  the circuit's list of parked ids; and, for a worker, the set of circuits that hold jobs of its queue
-- ARGV  most to move, the circuit
-- -> {number taken from the list, number queued of them}
-- Each goes to the queue that its id names. One that no longer waits here was aborted, or released by hand, and is dropped.

local ids = redis.call('LRANGE', KEYS[1], 0, tonumber(ARGV[1]) - 1)
local moved = 0
if #ids > 0 then redis.call('LPOP', KEYS[1], #ids) end
if KEYS[2] and redis.call('LLEN', KEYS[1]) == 0 then redis.call('SREM', KEYS[2], ARGV[2]) end
for _, id in ipairs(ids) do
    local queue = string.match(id, '^saq:job:([^:]+):')
    local incomplete = 'saq:' .. queue .. ':incomplete'
    if tonumber(redis.call('ZSCORE', incomplete, id) or 0) >= FAR_FUTURE then
        redis.call('ZADD', incomplete, 0, id)
        redis.call('RPUSH', 'saq:' .. queue .. ':queued', id)
        moved = moved + 1
    end
end
return {#ids, moved}
