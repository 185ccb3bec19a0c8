-- bridge.lua: make jobs of a stream's entries, which stay pending until their jobs are settled.
-- KEYS  of the queue
-- ARGV  job id prefix, queue, service, consumer, what a marker lives after a look (ms), its longest life (ms),
--       1 if a done record's pages are dropped, then FIELDS values for each entry:
--       entry id, record id, version, the job's text, what listeners are told
-- -> {an answer for each entry, jobs queued on the queue}
--      'queued'    its job is new
--      'touched'   its job waits or runs: it ends with that
--      'done'      this version is recorded: the entry is over
--      'behind'    its record has a job that is another version's, or not of this stream: it waits for that one's end
--      'gone'      it is no longer this consumer's: over, deleted, or another bridge's by now
-- Invariant: an entry of which a job is made stays pending. A record has one job at a time, on whatever queue, and no
-- entry that is over makes another one.

local FIELDS = 5
local keys = queue_keys()
local prefix, queue, service, consumer = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local idle, longest, drops = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == '1'
local stream, group, entries = stream_key(service), group_name(service), entries_key(service)
local now = math.floor(clock() / 1000)
demand(keys.queued, 'list')
demand(keys.incomplete, 'zset')
demand(stream, 'stream')
demand(entries, 'hash')

local function is_ours(id)
    local pending = redis.call('XPENDING', stream, group, id, id, 1)
    return pending[1] and pending[1][2] == consumer
end

local function is_unsettled(on, key)
    return type(redis.pcall('ZSCORE', 'saq:' .. on .. ':incomplete', 'saq:job:' .. on .. ':' .. key)) == 'string'
end

-- A look at a marker keeps it for another while, up to its longest life.
local function refresh(key, marker)
    local age = now - 1000 * (tonumber(string.match(marker, '"timestamp": (%d+)')) or 0)
    if longest > age then redis.call('PEXPIRE', key, decimal(math.min(idle, longest - age))) end
end

local function includes(ids, id)
    return string.find(',' .. ids .. ',', ',' .. id .. ',', 1, true)
end

local function take_in(id, record, version, job, said)
    if not is_ours(id) then return 'gone' end
    local key = service .. ':' .. record
    local known = entries_of(service, record)
    if known and is_unsettled(known.queue, key) then
        if known.version ~= version then return 'behind' end
        if not includes(known.ids, id) then
            remember_entries(service, record, version, known.ids .. ',' .. id, known.queue)
        end
        return 'touched'
    end
    local marker_at = marker_key(service, record)
    local marker = redis.call('MGET', marker_at)[1]  -- what is no string counts as none
    if field(marker, 'version') == version then
        refresh(marker_at, marker)
        if known then redis.call('HDEL', entries, record) end
        if drops then drop_pages(record, version) end
        end_entry(service, id)
        return 'done'
    end
    if is_unsettled(queue, key) then return 'behind' end
    redis.call('SET', prefix .. key, job)
    redis.call('ZADD', keys.incomplete, 0, prefix .. key)
    redis.call('RPUSH', keys.queued, prefix .. key)
    remember_entries(service, record, version, id, queue)
    redis.call('PUBLISH', progress_channel(record), said)
    return 'queued'
end

local answers = {}
for at = 8, #ARGV, FIELDS do
    answers[#answers + 1] = take_in(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
end
return {answers, redis.call('LLEN', keys.queued)}
