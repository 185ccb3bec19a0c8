-- claim.lua: take up to n jobs from the head of a queue, each with a lock, a token and a lease.
-- In   keys of the queue, job id prefix, worker, lease (ms), lane, n
-- Out  a list of {id, job, service, record id, token, marker or false, deaths or false}; service is '' for a job
--      whose text gives none, and then there is no lock
-- Invariant: an id leaves the queued list only as it enters another place, or because it is in another already.
-- Everything is looked at first and written last: a read that fails changes nothing.

local LOCKED_ELSEWHERE = 2     -- seconds until a job whose record somebody else runs is looked at again

-- The ids at the head of the queue, each once, that are not elsewhere already; and how many were looked at.
local function at_head(keys, n)
    local found = redis.call('LRANGE', keys.queued, 0, n - 1)
    if #found == 0 then return {}, 0 end
    local due = of_all('ZMSCORE', found, keys.incomplete)
    local running = of_all('ZMSCORE', found, keys.active)
    local ids, seen = {}, {}
    for at, id in ipairs(found) do
        if due[at] and tonumber(due[at]) == 0 and not running[at] and not seen[id] then
            seen[id] = true
            ids[#ids + 1] = id
        end
    end
    return ids, #found
end

local function claim(keys, prefix, worker, lease, lane, n)
    if n < 1 then return {} end
    local ids, looked_at = at_head(keys, n)
    if looked_at == 0 then return {} end
    local paused = {}
    for _, name in ipairs(redis.call('SMEMBERS', 'phoenix:paused')) do paused[name] = true end
    if paused[lane] then return {} end
    local facts = facts_of(keys, ids, prefix)
    local micros = clock()
    local now = math.floor(micros / 1000)
    local token = math.max(tonumber(redis.call('GET', 'phoenix:token') or 0), micros - 1)
    local till = decimal(now + lease)

    redis.call('LPOP', keys.queued, looked_at)
    local taken, texts, leases, held = {}, {}, {}, {}
    for _, fact in ipairs(facts) do
        if not fact.job then
            vanished(keys, fact.id)
        elseif paused[fact.service] then
            local list = 'paused:' .. fact.service
            redis.call('ZADD', keys.incomplete, FAR_FUTURE, fact.id)
            redis.call('RPUSH', parked_key(list), fact.id)
            redis.call('SADD', keys.parked_on, list)
        elseif fact.service ~= '' and (held[fact.lock_key] or lease_end(fact.lock) > now) then
            redis.call('ZADD', keys.incomplete, math.floor(now / 1000) + LOCKED_ELSEWHERE, fact.id)
        else
            token = token + 1
            local name = decimal(token)
            if fact.service ~= '' then
                held[fact.lock_key] = true
                texts[#texts + 1] = fact.lock_key
                texts[#texts + 1] = string.format('{"owner": "%s", "token": "%s", "since": %.0f, "until": %s}',
                    worker, name, now, till)
            end
            texts[#texts + 1] = fact.id
            texts[#texts + 1] = restated(fact.job, 'active', now, now, worker)
            leases[#leases + 1] = till
            leases[#leases + 1] = fact.id
            taken[#taken + 1] = {fact.id, fact.job, fact.service, fact.service ~= '' and fact.record or '', name,
                fact.service ~= '' and fact.marker, fact.deaths}
        end
    end
    if #taken > 0 then
        of_all('MSET', texts)
        of_all('ZADD', leases, keys.active)
        for _, run in ipairs(taken) do redis.call('PUBLISH', run[1], 'active') end
    end
    redis.call('SET', 'phoenix:token', decimal(token))
    return taken
end
