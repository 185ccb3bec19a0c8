-- claim.lua: take up to n jobs from the head of a queue, each with a lock, a token and a lease.
-- In   keys of the queue, job id prefix, worker, lease (ms), lane, n
-- Out  a list of {id, job, service, record id, token, marker or false, deaths or false}; service is '' for a job
--      whose text gives none, and then there is no lock. And whether it stopped before it had seen all of the queue.
-- Invariant: an id leaves the queued list only once it is in another place, or because it is in another already.
-- What may not be taken (paused, aborted, its record runs elsewhere) never keeps what is behind it from being taken.

local LOCKED_ELSEWHERE = 2     -- seconds until a job whose record somebody else runs is looked at again

local TURNS_AFTER = 4          -- takeovers after which a job shares its queue with no other of its kind
local CHUNK = 100        -- ids that are looked at together
local SCAN = 1000        -- ids that one claim looks at at most
local BYTES = 4194304    -- of jobs and markers in one answer, at most; a larger one travels alone

-- An id that is not taken now: where it waits instead. `queued` is the one place that it leaves.
local function pass_over(keys, fact, paused, prefix, now)
    if not fact.job then
        vanished(keys, fact.id, prefix, now)
        return
    end
    local list = 'paused:' .. fact.service
    if paused[fact.service] and type(redis.pcall('RPUSH', parked_key(list), fact.id)) == 'number' then
        redis.call('SADD', keys.parked_on, list)
        redis.call('ZADD', keys.incomplete, FAR_FUTURE, fact.id)
    else
        redis.call('ZADD', keys.incomplete, math.floor(now / 1000) + LOCKED_ELSEWHERE, fact.id)
    end
end

-- Workers that die together accuse no job, and two jobs that kill their workers might die together for ever. So those
-- that were taken over often take turns: in the end each has died with none of its kind beside it. Who died holds its
-- turn until it is taken over, but not where nothing is left to take over.
local function out_of_turn(keys, fact, held, now, lease)
    local takeovers = tonumber(string.match(fact.deaths or '', '^(%d+):') or 0)
    if takeovers < TURNS_AFTER or fact.service == '' then return false end
    local holder = redis.call('HGET', keys.deaths, 'turn')
    if holder and holder ~= fact.lock_key and (held[holder] or lease_end(read(holder)) + 2 * lease > now) then
        return true
    end
    redis.call('HSET', keys.deaths, 'turn', fact.lock_key)
    return false
end

-- A lock, a token and a lease for one job, for MSET and ZADD; and what the worker is told.
local function take(fact, name, worker, now, till, texts, leases)
    if fact.service ~= '' then
        texts[#texts + 1] = fact.lock_key
        texts[#texts + 1] = string.format('{"owner": "%s", "token": "%s", "since": %.0f, "until": %s}',
            worker, name, now, till)
    end
    texts[#texts + 1] = fact.id
    texts[#texts + 1] = restated(fact.job, 'active', now, now, worker)
    leases[#leases + 1] = till
    leases[#leases + 1] = fact.id
    local known = fact.service ~= ''
    return {fact.id, fact.job, fact.service, known and fact.record or '', name, known and fact.marker, fact.deaths}
end

-- Whether a queued id that is no longer among the unsettled was deleted there, and not ended: it is put back.
local function restored(keys, fact)
    if not fact.job or string.match(fact.job, '.*"status": "(%a+)"') ~= 'queued' then return false end
    redis.call('ZADD', keys.incomplete, 'NX', 0, fact.id)
    return true
end

local function claim(keys, prefix, worker, lease, lane, n)
    if n < 1 then return {}, false end
    local ids = redis.call('LRANGE', keys.queued, 0, math.min(n, CHUNK) - 1)
    if #ids == 0 then return {}, false end
    local paused = {}
    for _, name in ipairs(redis.call('SMEMBERS', PAUSED)) do paused[name] = true end
    if paused[lane] then return {}, false end
    local micros = clock()
    local now = math.floor(micros / 1000)
    local token = math.max(tonumber(redis.call('GET', 'phoenix:token') or 0), micros - 1)
    local till = decimal(now + lease)

    local taken, held, seen, bytes = {}, {}, 0, 0
    while #ids > 0 and #taken < n and seen < SCAN and bytes < BYTES do
        local due, running = of_all('ZMSCORE', ids, keys.incomplete), of_all('ZMSCORE', ids, keys.active)
        local facts, first = facts_of(keys, ids, prefix), #taken
        local texts, leases, looked = {}, {}, 0
        for at, fact in ipairs(facts) do
            if #taken == n or bytes >= BYTES then break end
            looked = at
            local lock = fact.service ~= '' and fact.lock_key or fact.id
            local waits = not held[fact.id]
                and (due[at] and tonumber(due[at]) == 0 or not due[at] and restored(keys, fact))
            local anew = waits and running[at] and replaced(fact.job)  -- it waits for the end of what ran before it
            if not waits or running[at] and not anew then  -- it is elsewhere already, or over
            elseif anew or not fact.job or paused[fact.service] or held[lock] or lease_end(fact.lock) > now
                or out_of_turn(keys, fact, held, now, lease) then
                pass_over(keys, fact, paused, prefix, now)
                held[fact.id] = true
            else
                token = token + 1
                held[lock], held[fact.id] = true, true
                taken[#taken + 1] = take(fact, decimal(token), worker, now, till, texts, leases)
                bytes = bytes + #fact.job + #(fact.marker or '')
            end
        end
        if #texts > 0 then
            of_all('MSET', texts)
            of_all('ZADD', leases, keys.active)
        end
        redis.call('LPOP', keys.queued, looked)
        for at = first + 1, #taken do redis.call('PUBLISH', taken[at][1], 'active') end
        seen = seen + looked
        ids = #taken < n and redis.call('LRANGE', keys.queued, 0, CHUNK - 1) or {}
    end
    if #taken > 0 then redis.call('SET', 'phoenix:token', decimal(token)) end
    return taken, #ids > 0
end
