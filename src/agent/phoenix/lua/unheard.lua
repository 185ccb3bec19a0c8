-- unheard.lua: give back what was claimed for a worker that never got the answer.
-- KEYS  of the queue
-- ARGV  job id prefix, worker, most to look at, then the tokens that the worker knows of
-- -> the number of jobs given back
-- Invariant: only the worker itself asks, while no claim of its own is on its way; what it does not know, nobody runs.

local keys = queue_keys()
local known = {}
for at = 4, #ARGV do known[ARGV[at]] = true end
local now = math.floor(clock() / 1000)
local given = 0
local ids = redis.call('ZREVRANGEBYSCORE', keys.active, '(inf', '-inf', 'LIMIT', 0, tonumber(ARGV[3]))
for _, fact in ipairs(facts_of(keys, ids, ARGV[1])) do
    if fact.job and field(fact.lock, 'owner') == ARGV[2] and not known[field(fact.lock, 'token')] then
        redis.call('SET', fact.id, restated(fact.job, 'queued', 0, now, ''))
        redis.call('DEL', fact.lock_key)
        redis.call('ZREM', keys.active, fact.id)
        redis.call('ZADD', keys.incomplete, 0, fact.id)
        redis.call('LPUSH', keys.queued, fact.id)
        given = given + 1
    end
end
return given
