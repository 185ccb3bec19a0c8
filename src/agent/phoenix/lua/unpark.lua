-- unpark.lua: put jobs that wait for a circuit, or for a pause to end, back on their queues.
-- KEYS  the circuit's list of parked ids
-- ARGV  most to move
-- -> the number moved
-- Each goes to the queue that its id names. One that no longer waits here was aborted, or released by hand, and is dropped.

local FAR_FUTURE = 4102444800  -- due when something other than the clock releases it (2100-01-01)
local ids = redis.call('LRANGE', KEYS[1], 0, tonumber(ARGV[1]) - 1)
if #ids == 0 then return 0 end
local moved = 0
redis.call('LPOP', KEYS[1], #ids)
for _, id in ipairs(ids) do
    local queue = string.match(id, '^saq:job:([^:]+):')
    local incomplete = 'saq:' .. queue .. ':incomplete'
    if tonumber(redis.call('ZSCORE', incomplete, id) or 0) >= FAR_FUTURE then
        redis.call('ZADD', incomplete, 0, id)
        redis.call('RPUSH', 'saq:' .. queue .. ':queued', id)
        moved = moved + 1
    end
end
return moved
