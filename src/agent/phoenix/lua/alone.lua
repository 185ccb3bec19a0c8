-- alone.lua: say in a run's lock that its worker runs nothing beside it, so that a death of that worker is its own.
-- ARGV  service, record id, token
-- -> 1, or 0 if the run is no longer its worker's
-- The next claim writes a new lock: there is nothing to take back.

local held = lock_key(ARGV[1], ARGV[2])
local lock = read(held)
if not owned(lock, ARGV[3]) then return 0 end
if not field(lock, 'alone') then
    redis.call('SET', held, (string.gsub(lock, '"since":', '"alone": "yes", "since":', 1)))
end
return 1
