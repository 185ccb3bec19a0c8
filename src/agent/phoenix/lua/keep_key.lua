-- keep_key.lua: end the making of a user's key, by who holds the lock for it.
-- KEYS  the user's key, the lock
-- ARGV  owner, the key that was made or '', how long it is kept (s)
-- -> the key that holds from now on, or false
-- Invariant: only the lock's owner puts a key there; one that was held up beyond its lock takes what another has made.

local mine = redis.call('GET', KEYS[2]) == ARGV[1]
if mine then
    if ARGV[2] ~= '' then redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3]) end
    redis.call('DEL', KEYS[2])
end
return redis.call('GET', KEYS[1])
