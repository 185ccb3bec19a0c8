-- renew.lua: extend the leases of running jobs, and the permits of those that probe a circuit.
-- KEYS  of the queue
-- ARGV  lease (ms), then id, service, record id, token for each run
-- -> the ids that are no longer ours
-- Invariant: a lease is extended only under its own token, whether it has run out meanwhile or not: as long as nobody
-- took the job over it is still ours.

local keys = queue_keys()
local now = math.floor(clock() / 1000)
local till = decimal(now + tonumber(ARGV[1]))
local lost, kept = {}, {}
for at = 2, #ARGV, 4 do
    local id, held = ARGV[at], lock_key(ARGV[at + 1], ARGV[at + 2])
    local lock = redis.call('GET', held)
    if owned(lock, ARGV[at + 3]) then
        redis.call('SET', held, (string.gsub(lock, '"until": %d+}$', '"until": ' .. till .. '}')))
        redis.call('ZADD', keys.active, till, id)
        kept[#kept + 1] = ARGV[at + 3]
    else
        lost[#lost + 1] = id
    end
end
if #kept > 0 then
    for _, probes in ipairs({PROBES, USER_PROBES}) do
        local probed = redis.pcall('HMGET', probes, unpack(kept))
        for at = 1, #probed do
            if probed[at] then redis.pcall('ZADD', permits_key(probed[at]), 'XX', 'GT', till, kept[at]) end
        end
    end
end
return lost
