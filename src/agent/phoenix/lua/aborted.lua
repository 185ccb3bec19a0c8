-- aborted.lua: the end of a job that somebody wants to be over and that nobody runs any more.
-- In   keys of the queue, id, the job's text from now on, how long it stays visible (ms), an entry for the
--      outbox or nothing; ARGV[1] is the job id prefix
-- The stream's entries of which it was made are over with it. What stays in a list of waiting ids is skipped there: it
-- is no longer incomplete. No list is searched for it. What could keep it from being written is looked at before the first
-- write: a job that has left one place and come to no other would be lost.

local function end_aborted(keys, id, text, visible, entry)
    local service, record = named_by(string.sub(id, #ARGV[1] + 1))
    demand_number('how long it stays visible', tonumber(visible), 1)
    demand(keys.deaths, 'hash')
    demand(keys.aborts, 'set')
    if service then demand_entries(service) end
    if entry and entry ~= '' then
        demand(keys.outbox, 'stream')
        redis.call('XADD', keys.outbox, '*', 'entry', entry)
    end
    if service then end_entries(service, record) end
    redis.call('ZREM', keys.active, id)
    redis.call('ZREM', keys.incomplete, id)
    redis.call('HDEL', keys.deaths, id)
    redis.call('SREM', keys.aborts, id)
    redis.call('SET', id, text, 'PX', decimal(math.ceil(tonumber(visible))))
    redis.call('PUBLISH', id, 'aborted')
end

-- A stored job as it is after that, where it was asked for while the job ran.
local ABORTED_VISIBLE = 600000
local function aborted_text(job, now)
    if not last_brace(job) then return job end
    return string.sub(restated(job, 'aborted', 0, now, ''), 1, -2) .. ', "completed": ' .. decimal(now) .. '}'
end
