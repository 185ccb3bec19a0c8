-- update.lua: replace a job's text without bringing back what is over.
-- KEYS  of the queue
-- ARGV  id, the job's text, its status for listeners, lock key and token ('' where the writer is not its worker), and a
--       record id with what listeners to its progress are told ('' for nothing)
-- -> 1 if it was written
-- A worker's text ends as its claim's did, and never replaces that of another job that waits under the id.
if ARGV[4] ~= '' then
    local lock = read(ARGV[4])
    if not owned(lock, ARGV[5]) or replaced(read(ARGV[1])) then return 0 end
    local since = tonumber(string.match(lock, '"since": (%d+)') or 0)
    ARGV[2] = restated(ARGV[2], 'active', since, math.floor(clock() / 1000), field(lock, 'owner'))
end
if not redis.call('SET', ARGV[1], ARGV[2], 'XX', 'KEEPTTL') then return 0 end
redis.call('PUBLISH', ARGV[1], ARGV[3])
if ARGV[7] ~= '' then redis.call('PUBLISH', progress_channel(ARGV[6]), ARGV[7]) end
return 1
