-- facts.lua: what a job's id and its stored text say, and what the server knows of jobs, many at once.

-- The task's name of a stored job, or nil. SAQ writes it first; cjson is only asked where somebody else did not,
-- because it refuses lone surrogates, which names of files may hold.
local function service_of(job)
    local name = string.match(job, '^%s*{%s*"function"%s*:%s*"([^"\\]+)"')
    if name then return name end
    local ok, decoded = pcall(cjson.decode, job)
    if ok and type(decoded) == 'table' and type(decoded['function']) == 'string' then
        return decoded['function']
    end
    return nil
end

-- What follows the first colon of a job's key; the whole key where there is none.
local function record_of(id, prefix)
    local key = string.sub(id, #prefix + 1)
    return string.match(key, '^[^:]*:(.+)$') or key
end

-- Calls a command for many keys or members at once.
local function of_all(command, items, ...)
    local call = {command, ...}
    for _, item in ipairs(items) do call[#call + 1] = item end
    return redis.call(unpack(call))
end

-- How many jobs wait in no place: their list was deleted, or a failover lost it.
local function lost_of(keys)
    local waiting = redis.call('ZCOUNT', keys.incomplete, 0, 0)
    return waiting - redis.call('LLEN', keys.queued) - redis.call('ZCOUNT', keys.active, '-inf', '(inf')
end

-- What the server knows of each id: {id, job, service, record, lock_key, lock, marker, deaths}.
local function facts_of(keys, ids, prefix)
    if #ids == 0 then return {} end
    local jobs, deaths = of_all('MGET', ids), of_all('HMGET', ids, keys.deaths)
    local facts, lock_keys, marker_keys = {}, {}, {}
    for at, id in ipairs(ids) do
        local service, record = jobs[at] and service_of(jobs[at]) or '', record_of(id, prefix)
        lock_keys[at] = lock_key(service, record)
        marker_keys[at] = marker_key(service, record)
        facts[at] = {id = id, job = jobs[at], service = service, record = record, lock_key = lock_keys[at],
            deaths = deaths[at]}
    end
    local locks, markers = of_all('MGET', lock_keys), of_all('MGET', marker_keys)
    for at, fact in ipairs(facts) do
        fact.lock, fact.marker = locks[at], markers[at]
    end
    return facts
end

-- Deletes a lock whose lease is over; one that lives is somebody's who runs the record.
local function free_if_over(held_by, now)
    local lock = read(held_by)
    if lock and lease_end(lock) <= now then redis.call('DEL', held_by) end
end

-- Of a run in whose place another job waits already, nothing is left; that job stays where it is. Its text may also be a
-- producer's, which wrote it while the job ran: then it is queued. An id that is there twice is taken once.
local function leave_to_next(keys, id)
    redis.call('ZREM', keys.active, id)
    redis.pcall('HDEL', keys.deaths, id)
    redis.pcall('SREM', keys.aborts, id)
    local due = redis.call('ZSCORE', keys.incomplete, id)
    if due and tonumber(due) == 0 then redis.call('RPUSH', keys.queued, id) end
end

-- A job whose text is gone, and nothing else is to be left of it: a later one with its key is another job. Of its lock
-- the key alone tells, where it names the task.
local function vanished(keys, id, prefix, now)
    local service, record = named_by(string.sub(id, #prefix + 1))
    if redis.call('ZREM', keys.active, id) == 1 and service then free_if_over(lock_key(service, record), now) end
    redis.call('ZREM', keys.incomplete, id)
    redis.pcall('HDEL', keys.deaths, id)
    redis.pcall('SREM', keys.aborts, id)
    redis.pcall('HINCRBY', keys.counters, 'vanished', 1)
end
