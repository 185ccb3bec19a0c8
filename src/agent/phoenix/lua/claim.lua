-- claim.lua: take up to n jobs from the head of a queue, each with a lock, a token and a lease.
-- In   keys of the queue, job id prefix, worker, lease (ms), lane, n
-- Out  a list of {id, job, service, record id, token, marker or false, deaths or false}; service is '' for a job
--      whose text gives none, and then there is no lock
-- Invariant: an id leaves the queued list only as it enters another place, or because it is in another already.
-- Everything is looked at first and written last: a read that fails changes nothing.

local LOCKED_ELSEWHERE = 2     -- seconds until a job whose record somebody else runs is looked at again
local FAR_FUTURE = 4102444800  -- due when something other than the clock releases it (2100-01-01)

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

-- What to do with one id at the head of the queue; nil for one that is elsewhere already.
local function plan_for(keys, id, prefix, paused, now)
    local due = redis.call('ZSCORE', keys.incomplete, id)
    if not due or tonumber(due) ~= 0 or redis.call('ZSCORE', keys.active, id) then return nil end
    local job = redis.call('GET', id)
    if not job then return {what = 'vanished', id = id} end
    local service = service_of(job)
    if not service then return {what = 'take', id = id, job = job, service = '', record = ''} end
    if paused[service] then return {what = 'park', id = id, circuit = 'paused:' .. service} end
    local record = record_of(id, prefix)
    local lock = redis.call('GET', 'lock:' .. service .. ':' .. record)
    if lock and lease_end(lock) > now then return {what = 'wait', id = id} end
    return {
        what = 'take', id = id, job = job, service = service, record = record,
        marker = redis.call('GET', 'processed:' .. service .. ':' .. record),
        deaths = redis.call('HGET', keys.deaths, id),
    }
end

local function claim(keys, prefix, worker, lease, lane, n)
    if n < 1 then return {} end
    local ids = redis.call('LRANGE', keys.queued, 0, n - 1)
    if #ids == 0 then return {} end
    local paused = {}
    for _, name in ipairs(redis.call('SMEMBERS', 'phoenix:paused')) do paused[name] = true end
    if paused[lane] then return {} end

    local micros = clock()
    local now = math.floor(micros / 1000)
    local plan, seen = {}, {}
    for _, id in ipairs(ids) do
        if not seen[id] then
            seen[id] = true
            plan[#plan + 1] = plan_for(keys, id, prefix, paused, now)
        end
    end
    local token = math.max(tonumber(redis.call('GET', 'phoenix:token') or 0), micros - 1)

    local taken = {}
    redis.call('LPOP', keys.queued, #ids)
    for _, step in ipairs(plan) do
        if step.what == 'vanished' then
            redis.call('ZREM', keys.incomplete, step.id)
            redis.call('HINCRBY', keys.counters, 'vanished', 1)
        elseif step.what == 'park' then
            redis.call('ZADD', keys.incomplete, FAR_FUTURE, step.id)
            redis.call('RPUSH', 'phoenix:parked:' .. step.circuit, step.id)
            redis.call('SADD', keys.parked_on, step.circuit)
        elseif step.what == 'wait' then
            redis.call('ZADD', keys.incomplete, math.floor(now / 1000) + LOCKED_ELSEWHERE, step.id)
        else
            token = token + 1
            local name, till = decimal(token), decimal(now + lease)
            if step.service ~= '' then
                redis.call('SET', 'lock:' .. step.service .. ':' .. step.record,
                    '{"owner": "' .. worker .. '", "token": "' .. name .. '", "since": ' .. decimal(now)
                    .. ', "until": ' .. till .. '}')
            end
            redis.call('ZADD', keys.active, till, step.id)
            redis.call('SET', step.id, restated(step.job, 'active', now, now, worker))
            redis.call('PUBLISH', step.id, 'active')
            taken[#taken + 1] = {step.id, step.job, step.service, step.record, name, step.marker or false,
                step.deaths or false}
        end
    end
    redis.call('SET', 'phoenix:token', decimal(token))
    return taken
end
