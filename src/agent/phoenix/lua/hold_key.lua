-- hold_key.lua: who has a user's key made; also where the server is out of memory, since a run waits for it.
-- KEYS  the lock        ARGV  owner, how long it holds (ms)        -> whose it was before, or false: it is the owner's now

return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'GET', 'PX', ARGV[2])
