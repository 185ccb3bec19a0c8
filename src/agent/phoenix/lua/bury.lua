-- bury.lua: end an entry of which no job can be made, with a letter that says why.
-- ARGV  service, consumer, entry id, the letter
-- -> 1, or 0 if the entry is no longer this consumer's
-- Invariant: the letter is written in the step in which the entry is over.

local service, id = ARGV[1], ARGV[3]
local letters = 'phoenix:' .. service .. ':dlq'
demand(stream_key(service), 'stream')
demand(letters, 'list')
local pending = redis.call('XPENDING', stream_key(service), group_name(service), id, id, 1)
if not pending[1] or pending[1][2] ~= ARGV[2] then return 0 end
redis.call('RPUSH', letters, ARGV[4])
end_entry(service, id)
return 1
