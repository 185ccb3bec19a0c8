-- update.lua: replace a job's text without bringing back what is over.
-- KEYS  of the queue
-- ARGV  id, the job's text, its status for listeners, lock key and token ('' where the writer is not its worker), and a
--       record id with what listeners to its progress are told ('' for nothing)
-- -> 1 if it was written
if ARGV[4] ~= '' and not owned(redis.call('GET', ARGV[4]), ARGV[5]) then return 0 end
if not redis.call('SET', ARGV[1], ARGV[2], 'XX', 'KEEPTTL') then return 0 end
redis.call('PUBLISH', ARGV[1], ARGV[3])
if ARGV[7] ~= '' then redis.call('PUBLISH', progress_channel(ARGV[6]), ARGV[7]) end
return 1
