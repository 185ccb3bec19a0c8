-- renew.lua: extend the leases of running jobs, and the permits of those that probe a circuit.
-- KEYS  of the queue
-- ARGV  lease (ms), then id, service, record id, token for each run
-- -> the ids that are no longer ours
-- Invariant: a lease is extended only under its own token, whether it has run out meanwhile or not: as long as nobody
-- took the job over it is still ours. What runs is unsettled, whoever struck it off: its key stays taken.

local CHUNK = 500  -- runs that are looked at together
local RUN = 4      -- values of each

local keys = queue_keys()
local till = decimal(math.floor(clock() / 1000) + tonumber(ARGV[1]))
local lost = {}

local function keep_permits(tokens)
    for _, probes in ipairs({PROBES, USER_PROBES}) do
        local probed = redis.pcall('HMGET', probes, unpack(tokens))
        for at = 1, #probed do
            if probed[at] then redis.pcall('ZADD', permits_key(probed[at]), 'XX', 'GT', till, tokens[at]) end
        end
    end
end

local function renew(from, last)
    local held = {}
    for at = from, last, RUN do held[#held + 1] = lock_key(ARGV[at + 1], ARGV[at + 2]) end
    local locks = redis.call('MGET', unpack(held))
    local texts, leases, unsettled, tokens = {}, {}, {}, {}
    for n, lock in ipairs(locks) do
        local id, token = ARGV[from + RUN * (n - 1)], ARGV[from + RUN * n - 1]
        if owned(lock, token) then
            texts[#texts + 1] = held[n]
            texts[#texts + 1] = string.gsub(lock, '"until": %d+}$', '"until": ' .. till .. '}')
            leases[#leases + 1], leases[#leases + 2] = till, id
            unsettled[#unsettled + 1], unsettled[#unsettled + 2] = 0, id
            tokens[#tokens + 1] = token
        else
            lost[#lost + 1] = id
        end
    end
    if #tokens == 0 then return end
    redis.call('MSET', unpack(texts))
    redis.call('ZADD', keys.active, unpack(leases))
    redis.pcall('ZADD', keys.incomplete, 'NX', unpack(unsettled))
    keep_permits(tokens)
end

for from = 2, #ARGV, RUN * CHUNK do renew(from, math.min(from + RUN * CHUNK - 1, #ARGV)) end
return lost
