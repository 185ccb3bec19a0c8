-- unheard.lua: give back what was claimed for a worker that never got the answer.
-- KEYS  of the queue
-- ARGV  job id prefix, worker, number of ids, ids to look at, then the tokens that the worker knows of
-- -> the number of jobs given back
-- Invariant: only the worker itself asks, while no claim of its own is on its way; what it does not know, nobody runs.
-- A job without a readable task has no lock: its text names its worker, and it is set aside in the moment in which a
-- worker hears of it. A text that is no job names nobody, and waits for the end of its lease. A job that was asked to
-- end is not given back.

local keys = queue_keys()
demand(keys.queued, 'list')
demand(keys.incomplete, 'zset')
demand(keys.aborts, 'set')
local ids, known = {}, {}
for at = 4, 3 + tonumber(ARGV[3]) do ids[#ids + 1] = ARGV[at] end
for at = 4 + #ids, #ARGV do known[ARGV[at]] = true end
local now = math.floor(clock() / 1000)

local function is_unheard(fact)
    if not fact.job then return false end
    if fact.service == '' then return worker_of(fact.job) == ARGV[2] end
    return field(fact.lock, 'owner') == ARGV[2] and not known[field(fact.lock, 'token')]
end

local given = 0
for _, fact in ipairs(facts_of(keys, ids, ARGV[1])) do
    if redis.call('ZSCORE', keys.active, fact.id) and is_unheard(fact) then
        if fact.service ~= '' then redis.call('DEL', fact.lock_key) end
        if replaced(fact.job) then
            leave_to_next(keys, fact.id)
        elseif redis.call('SISMEMBER', keys.aborts, fact.id) == 1 then
            end_aborted(keys, fact.id, aborted_text(fact.job, now), ABORTED_VISIBLE)
        else
            redis.call('SET', fact.id, restated(fact.job, 'queued', 0, now, ''))
            redis.call('ZREM', keys.active, fact.id)
            redis.call('ZADD', keys.incomplete, 0, fact.id)
            redis.call('LPUSH', keys.queued, fact.id)
            given = given + 1
        end
    end
end
return given
