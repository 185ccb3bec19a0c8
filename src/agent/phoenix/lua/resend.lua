-- resend.lua: put what was set aside back on the stream from which it came, as a new entry.
-- KEYS  the list of letters, the stream
-- ARGV  the letter as it stands there, then the entry's fields and values
-- -> 'queued' | 'gone' (somebody was faster)
-- Invariant: the letter leaves the list in the step in which its entry enters the stream.

demand(KEYS[2], 'stream')
if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 0 then return 'gone' end
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 2))
return 'queued'
