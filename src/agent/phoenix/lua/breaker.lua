-- breaker.lua: one circuit's state machine, shared by all workers.
--   CLOSED --(failures in a row)--> OPEN --(time)--> HALF_OPEN --(successes)--> CLOSED; a failure there --> OPEN
-- KEYS  the circuit's hash, its permits, the set of all circuits
-- ARGV  operation, circuit, failures, open (ms), successes, probes, permit (ms), then by operation:
--         'ask'    owner                -> {'pass', epoch} | {'hold', ms until it is worth asking}
--         'tell'   owner, epoch, 'ok' | 'failed' | 'void'   -> {state, epoch}
--         'force'  'open' | 'closed' | 'none', reason       -> {state, epoch}
--         'look'                        -> {state, epoch, failures, successes, opened at (ms), forced, reason, probes}
-- Invariant: an outcome counts only in the epoch that it was asked in; each change of state begins a new epoch. At
-- most `probes` permits are out, whatever epoch they are of, and none is given but while half open. Each has an end, so
-- that a killed prober wedges nothing; while its run holds its lease, the permit of a run lives on (renew.lua).
-- A circuit that does not let everything through is in the set HELD, from where release.lua knows of it.

local op, circuit = ARGV[1], ARGV[2]
local now = math.floor(clock() / 1000)
local names = {'state', 'epoch', 'failures', 'successes', 'opened', 'forced', 'reason'}
local stored = redis.call('HMGET', KEYS[1], unpack(names))
local c = {
    state = stored[1] or 'closed', epoch = tonumber(stored[2] or 0), failures = tonumber(stored[3] or 0),
    successes = tonumber(stored[4] or 0), opened = tonumber(stored[5] or 0),
    forced = stored[6] or 'none', reason = stored[7] or '',
}
local open_for = tonumber(ARGV[4])

local function become(state)
    c.state, c.failures, c.successes, c.epoch = state, 0, 0, c.epoch + 1
    if state == 'open' then c.opened = now end
end

-- A single user's circuit is kept and listed while there is trouble: there are as many of them as there are users.
local is_users = string.find(circuit, ':user:', 1, true)
local FORGOTTEN = 86400000  -- ms
local probing = is_users and USER_PROBES or PROBES

local function is_quiet() return c.state == 'closed' and c.failures == 0 and c.forced == 'none' end

local function return_permit(owner)
    if redis.call('ZREM', KEYS[2], owner) == 1 then redis.call('HDEL', probing, owner) end
end

-- From when on it is worth a probe (ms); nil where everything is let through.
local function held_until()
    if c.forced == 'open' then return 'inf' end
    if c.forced == 'none' and c.state ~= 'closed' then return decimal(c.opened + open_for) end
end

local function store()
    if is_users then redis.call('DEL', KEYS[1]) end  -- its end with it
    redis.call('HSET', KEYS[1], 'state', c.state, 'epoch', c.epoch, 'failures', c.failures, 'successes', c.successes,
        'opened', decimal(c.opened), 'forced', c.forced, 'reason', c.reason)
    if is_users and is_quiet() then
        redis.call('PEXPIRE', KEYS[1], FORGOTTEN)
        redis.call('SREM', KEYS[3], circuit)
    else
        redis.call('SADD', KEYS[3], circuit)
    end
    local till = held_until()
    if till then redis.call('ZADD', HELD, till, circuit) else redis.call('ZREM', HELD, circuit) end
end

local function hold(wait)
    redis.call('ZADD', HELD, 'NX', held_until(), circuit)  -- should somebody have deleted it
    return {'hold', wait}
end

if c.forced == 'none' and c.state == 'open' and now >= c.opened + open_for then
    become('half_open')
    if op ~= 'look' then store() end
end

if op == 'look' then
    local probes = c.state == 'half_open' and redis.call('ZCOUNT', KEYS[2], '(' .. decimal(now), '+inf') or 0
    return {c.state, c.epoch, c.failures, c.successes, decimal(c.opened), c.forced, c.reason, probes}
end

if op == 'force' then
    c.forced, c.reason = ARGV[8], ARGV[9]
    if c.forced == 'none' then become('closed') else become(c.forced) end
    store()
    return {c.state, c.epoch}
end

if op == 'ask' then
    if c.forced == 'closed' or (c.forced == 'none' and c.state == 'closed') then return {'pass', c.epoch} end
    if c.forced == 'open' then return hold(-1) end
    if c.state == 'open' then return hold(c.opened + open_for - now) end
    for _, owner in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do return_permit(owner) end
    if redis.call('ZSCORE', KEYS[2], ARGV[8]) then return {'pass', c.epoch} end
    if redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[6]) then
        local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
        return hold(tonumber(first[2]) - now)
    end
    redis.call('ZADD', KEYS[2], now + tonumber(ARGV[7]), ARGV[8])
    redis.call('HSET', probing, ARGV[8], circuit)
    return {'pass', c.epoch}
end

-- tell
return_permit(ARGV[8])
if tonumber(ARGV[9]) ~= c.epoch or c.forced ~= 'none' or ARGV[10] == 'void' then return {c.state, c.epoch} end
local before = c.failures + c.successes
if ARGV[10] == 'ok' then
    c.failures = 0
    if c.state == 'half_open' then
        c.successes = c.successes + 1
        if c.successes >= tonumber(ARGV[5]) then become('closed') end
    end
else
    c.failures = c.failures + 1
    if c.state == 'half_open' or (c.state == 'closed' and c.failures >= tonumber(ARGV[3])) then become('open') end
end
local is_new = not stored[1] and not (is_users and is_quiet())
if c.failures + c.successes ~= before or before ~= 0 or (stored[1] or is_new) and c.state ~= stored[1] then store() end
return {c.state, c.epoch}
