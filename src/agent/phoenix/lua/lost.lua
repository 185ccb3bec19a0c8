-- lost.lua: queue again what waits in no place: somebody deleted its list, or a failover lost a part of it.
-- KEYS  of the queue
-- ARGV  ids that were in no list when somebody looked
-- -> the number queued
-- One that was queued meanwhile is there twice, and taken once. What is due later or runs stays where it is.

local keys = queue_keys()
if lost_of(keys) <= 0 then return 0 end
local due, running = of_all('ZMSCORE', ARGV, keys.incomplete), of_all('ZMSCORE', ARGV, keys.active)
local found = 0
for at, id in ipairs(ARGV) do
    if due[at] and tonumber(due[at]) == 0 and not running[at] then
        redis.call('RPUSH', keys.queued, id)
        found = found + 1
    end
end
redis.pcall('HINCRBY', keys.counters, 'brought_back', found)
return found
