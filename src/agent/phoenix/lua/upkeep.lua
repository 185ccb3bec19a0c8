-- upkeep.lua: what time alone brings about: due jobs become queued, jobs whose lease ran out are taken over.
-- KEYS  of the queue
-- ARGV  job id prefix, most to move, 1 to look for orphans as well, 1 to tell about aborts as well
-- -> {number of due jobs queued, ids taken over, ids to abort}
-- Invariant: a job whose lease lives is not touched. Each job is decided on and moved in this one step.

local keys = queue_keys()
local prefix, most = ARGV[1], tonumber(ARGV[2])
local sweeps = ARGV[3] == '1'

-- An idle queue costs one look: the clock is asked only where it decides something.
local waits = #redis.call('ZRANGEBYSCORE', keys.incomplete, '(0', '(' .. FAR_FUTURE, 'LIMIT', 0, 1) > 0
local now = (waits or sweeps) and math.floor(clock() / 1000) or 0
local second = decimal(math.floor(now / 1000))
local due = waits and redis.call('ZRANGEBYSCORE', keys.incomplete, '(0', second, 'LIMIT', 0, most) or {}
for _, id in ipairs(due) do
    redis.call('ZADD', keys.incomplete, 0, id)
    redis.call('RPUSH', keys.queued, id)
end

-- Deaths tell bad luck from poison: a worker that died while it ran one job alone, after two takeovers, died of it.
local function note_death(id, alone)
    local takeovers, own = string.match(redis.call('HGET', keys.deaths, id) or '0:0', '^(%d+):(%d+)$')
    takeovers, own = tonumber(takeovers or 0), tonumber(own or 0)
    if alone and takeovers >= 2 then own = own + 1 end
    redis.call('HSET', keys.deaths, id, decimal(takeovers + 1) .. ':' .. decimal(own))
end

local function lock_of(job, id)
    local service = service_of(job)
    local key = service and lock_key(service, record_of(id, prefix))
    return key, key and redis.call('GET', key)
end

-- owner -> how many jobs it holds; nothing where several owners died at once, which is no job's fault.
local function holders(ids)
    local held, died = {}, {}
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', keys.active, '-inf', '(inf', 'LIMIT', 0, most + 1)) do
        local job = redis.call('GET', id)
        local _, lock = lock_of(job or '', id)
        local owner = field(lock, 'owner')
        if owner then held[owner] = (held[owner] or 0) + 1 end
        for _, orphan in ipairs(ids) do
            if orphan == id and owner then died[owner] = true end
        end
    end
    local first = next(died)
    if first and next(died, first) then return {} end
    return held
end

local function take_over(id, held)
    local job = redis.call('GET', id)
    local unwanted = redis.call('SISMEMBER', keys.aborts, id) == 1
    if not job then
        redis.call('ZREM', keys.active, id)
        redis.call('ZREM', keys.incomplete, id)
        redis.call('HINCRBY', keys.counters, 'vanished', 1)
        return false
    end
    local held_by, lock = lock_of(job, id)
    if lock and lease_end(lock) <= now then  -- a live one is another queue's job for the same record
        note_death(id, held[field(lock, 'owner')] == 1)
        redis.call('DEL', held_by)
    end
    if unwanted then
        end_aborted(keys, id, aborted_text(job, now), ABORTED_VISIBLE)
        return false
    end
    redis.call('SET', id, restated(job, 'queued', 0, now, ''))
    redis.call('ZREM', keys.active, id)
    redis.call('ZADD', keys.incomplete, 0, id)
    redis.call('LPUSH', keys.queued, id)
    redis.call('HINCRBY', keys.counters, 'takeovers', 1)
    return true
end

local orphans = {}
if sweeps then
    -- An empty sorted set would be no key, and a plain SAQ worker could move jobs to a list in its place.
    redis.call('ZADD', keys.active, 'NX', 'inf', 'guard')
    local ids = redis.call('ZRANGEBYSCORE', keys.active, '-inf', decimal(now), 'LIMIT', 0, most)
    local held = #ids > 0 and holders(ids) or {}
    for _, id in ipairs(ids) do
        local ok, taken = pcall(take_over, id, held)  -- one bad entry never spoils the others
        if ok and taken then orphans[#orphans + 1] = id end
    end
end

return {#due, orphans, ARGV[4] == '1' and redis.call('SMEMBERS', keys.aborts) or {}}
