-- drop_key.lua: forget a user's key that a provider refused, unless there is a newer one.
-- KEYS  the user's key        ARGV  the refused one        -> 1 if it was forgotten

local stored = redis.call('GET', KEYS[1])
if not stored or string.match(stored, '^%s*(.-)%s*$') ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
