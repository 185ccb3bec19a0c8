-- upkeep.lua: what time alone brings about: due jobs become queued, jobs whose lease ran out are taken over.
-- KEYS  of the queue
-- ARGV  job id prefix, most to move, 1 to look for orphans as well, 1 to tell about aborts as well, a lease (ms), how long
--       the server is up (s; 0: nobody knows), then the tokens of the runs that the asker has
-- -> {number of due jobs queued, ids taken over, ids to abort, number of jobs that wait in no place}
-- Invariant: a job whose lease lives is not touched, nor one that the asker runs, whose lease ends unrenewed where the
-- clock leapt: a machine slept, or somebody set it. Each job is decided on and moved in this one step.

local keys = queue_keys()
local prefix, most = ARGV[1], tonumber(ARGV[2])
local sweeps = ARGV[3] == '1'
local known = {}
for at = 7, #ARGV do known[ARGV[at]] = true end

-- An idle queue costs one look: the clock is asked only where it decides something.
local waits = #redis.call('ZRANGEBYSCORE', keys.incomplete, '(0', '(' .. FAR_FUTURE, 'LIMIT', 0, 1) > 0
local now = (waits or sweeps) and math.floor(clock() / 1000) or 0
-- The server's own idea of when it started is in whole seconds: up to one later.
local started = tonumber(ARGV[6]) > 0 and now - 1000 * (tonumber(ARGV[6]) - 1) or 0
local second = decimal(math.floor(now / 1000))
local due = waits and redis.call('ZRANGEBYSCORE', keys.incomplete, '(0', second, 'LIMIT', 0, most) or {}
for _, id in ipairs(due) do
    redis.call('RPUSH', keys.queued, id)
    redis.call('ZADD', keys.incomplete, 0, id)
end

local function lock_of(job, id)
    local service = job and service_of(job)
    if not job then service = named_by(string.sub(id, #prefix + 1)) end
    local key = service and lock_key(service, record_of(id, prefix))
    return key, key and read(key)
end

-- Several workers that died at once died of no job: then nobody is said to have run one alone. One that has not renewed
-- for half a lease counts as dead here, for the leases of those that died together do not end together.
local function forgive_many()
    local owners, count, alone = {}, 0, {}
    local silent = decimal(now + tonumber(ARGV[5]) / 2)
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', keys.active, '-inf', silent, 'LIMIT', 0, most)) do
        local held_by, lock = lock_of(read(id), id)
        local owner = field(lock, 'owner')
        if owner and not owners[owner] then owners[owner], count = true, count + 1 end
        if field(lock, 'alone') then alone[held_by] = lock end
    end
    if count < 2 then return end
    for held_by, lock in pairs(alone) do redis.call('SET', held_by, (string.gsub(lock, '"alone": "yes", ', '', 1))) end
end

-- Deaths tell bad luck from poison: a worker that died while it ran one job alone died of it. Not so where the server
-- has started since: then a machine lost its power, or somebody stopped everything.
local function note_death(id, lock)
    local alone = field(lock, 'alone') and tonumber(string.match(lock, '"since": (%d+)') or 0) > started
    local known = redis.pcall('HGET', keys.deaths, id)
    local takeovers, own = string.match(type(known) == 'string' and known or '0:0', '^(%d+):(%d+)$')
    own = tonumber(own or 0) + (alone and 1 or 0)
    redis.pcall('HSET', keys.deaths, id, decimal(tonumber(takeovers or 0) + 1) .. ':' .. decimal(own))
end

local function take_over(id)
    local job = read(id)
    local held_by, lock = lock_of(job, id)
    if known[field(lock, 'token')] then return false end
    if not job then
        vanished(keys, id, prefix, now)
        return false
    end
    local anew = replaced(job)
    if lock and lease_end(lock) <= now then  -- a live one is another queue's job for the same record
        if not anew then note_death(id, lock) end
        redis.call('DEL', held_by)
    end
    if anew then
        leave_to_next(keys, id)
        return false
    end
    if redis.call('SISMEMBER', keys.aborts, id) == 1 then
        end_aborted(keys, id, aborted_text(job, now), ABORTED_VISIBLE)
        return false
    end
    redis.call('LPUSH', keys.queued, id)
    redis.call('SET', id, restated(job, 'queued', 0, now, ''))
    redis.call('ZREM', keys.active, id)
    redis.call('ZADD', keys.incomplete, 0, id)
    redis.pcall('HINCRBY', keys.counters, 'takeovers', 1)
    return true
end

local orphans = {}
if sweeps then
    -- An empty sorted set would be no key, and a plain SAQ worker could move jobs to a list in its place.
    redis.call('ZADD', keys.active, 'NX', 'inf', 'guard')
    local ids = redis.call('ZRANGEBYSCORE', keys.active, '-inf', decimal(now), 'LIMIT', 0, most)
    if #ids > 0 then forgive_many() end
    for _, id in ipairs(ids) do
        local ok, taken = pcall(take_over, id)  -- one bad entry never spoils the others
        if ok and taken then orphans[#orphans + 1] = id end
    end
end

local asked = ARGV[4] == '1' and redis.call('SMEMBERS', keys.aborts) or {}
return {#due, orphans, asked, sweeps and math.max(0, lost_of(keys)) or 0}
