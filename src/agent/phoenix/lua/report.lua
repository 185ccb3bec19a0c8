-- report.lua: put entries into an outbox; also where the server is out of memory, since they tell of work done and of
-- money spent.
-- KEYS  the outbox        ARGV  entries, in order

for _, entry in ipairs(ARGV) do redis.call('XADD', KEYS[1], '*', 'entry', entry) end
