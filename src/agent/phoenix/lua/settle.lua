-- settle.lua: end runs of jobs, by the owners of their leases: record a result once, or give the job back.
-- In   keys of the queue, and a list of runs that ended, each with
--        kind     'settle' (it is over) | 'retry' (later) | 'release' (at once, to the head) | 'park' (on a circuit)
--        id, service, record, token
--        job      the stored job from now on
--        status   what listeners are told
--        number   settle: how long the job stays visible (ms; 0 for ever, -1 not at all); retry: wait (s)
--        marker, marker_ms   what is known of the record from now on, and for how long; '' leaves the marker as it is,
--                 and lets it live that long from now, should there be one (0 does not)
--        entry    for the outbox: '', or '=' for the same text as the marker
--        letter, list        a dead letter or a case for quarantine and where it goes, or ''; park: list is the circuit
--        deaths   what is known of its deaths: '' as before, '-' forget them, else `takeovers:own`
--        stage    nil, or for a stage of a pipeline that settles {'1' if it answers for entries of its stream, the next
--                 stage's service or '', the user, data and version for its entry, the record's pages ('' leaves them,
--                 '-' drops those of this version), what listeners to the record's progress are told}
-- Out  for each 'settled' | 'stale' | 'error: ...'; what is sent again answers 'settled'
-- Where another job waits under a run's id by then, the run's result is recorded, and that job's text and place stay.
-- Invariant: marker, outbox entry, the next stage's entry, release of the lock and acknowledgement (of the stream's
-- entries as well) happen together or not at all. A stale owner changes nothing and is counted. A job that was asked to
-- end is not given back. What could keep a run from being written is looked at before the first write of any, so that it
-- spoils neither itself nor the others.

local REMEMBERED = 300000   -- ms for which an end that leaves no marker is known, should its answer be lost
local PAGES_LIFE = 2592000000   -- ms (30 days) for which the pages of a record wait for who reads them last

-- Raises what would keep this run from being written.
local function check(keys, run, unwanted)
    if run.deaths ~= '' or unwanted then demand(keys.deaths, 'hash') end
    if (run.stage or unwanted) and run.service ~= '' then demand_entries(run.service) end
    if run.stage and run.stage[2] ~= '' then demand(stream_key(run.stage[2]), 'stream') end
    if run.kind == 'settle' then
        demand_number('its time to live', run.number, -1)
        if run.entry ~= '' then demand(keys.outbox, 'stream') end
        if run.letter ~= '' then demand(run.list, 'list') end
        demand_number("its marker's time to live", run.marker_ms, run.marker ~= '' and 1 or 0)
    elseif not unwanted then
        demand_number('its wait', run.number, 0)
        demand(keys.incomplete, 'zset')
        if run.kind == 'release' then demand(keys.queued, 'list') end
        if run.kind == 'park' then
            demand(parked_key(run.list), 'list')
            demand(keys.parked_on, 'set')
        end
    end
end

-- A stage leaves the record to the next one, and answers for the entries that asked for it.
local function pass_on(run)
    local asked, following, user, data, version, pages, said = unpack(run.stage)
    if following ~= '' then
        redis.call('XADD', stream_key(following), '*',
            'record_id', run.record, 'user_id', user, 'data', data, 'version', version)
    end
    if pages == '-' then
        if run.marker ~= '' then drop_pages(run.record, field(run.marker, 'version')) end
    elseif pages ~= '' then
        redis.call('SET', pages_key(run.record), pages, 'PX', decimal(PAGES_LIFE))
        redis.call('SET', pages_version_key(run.record), version, 'PX', decimal(PAGES_LIFE))
    end
    local service, record = named_by(string.sub(run.id, #ARGV[1] + 1))
    if asked == '1' and service then end_entries(service, record) end
    redis.call('PUBLISH', progress_channel(run.record), said)
end

-- It is over: what came of it goes to the marker, the outbox, the letters.
local function conclude(keys, run)
    local entry = run.entry == '=' and run.marker or run.entry
    if run.marker ~= '' then
        redis.call('SET', marker_key(run.service, run.record), run.marker, 'PX',
            decimal(math.ceil(run.marker_ms)))
    elseif run.marker_ms > 0 then
        redis.call('PEXPIRE', marker_key(run.service, run.record), decimal(math.ceil(run.marker_ms)), 'GT')
    end
    if entry ~= '' then redis.call('XADD', keys.outbox, '*', 'entry', entry) end
    if run.letter ~= '' then redis.call('RPUSH', run.list, run.letter) end
    if run.stage then pass_on(run) end
    if run.replaced then return end
    if run.number > 0 then
        redis.call('SET', run.id, run.job, 'PX', decimal(math.ceil(run.number)))
    elseif run.number == 0 then
        redis.call('SET', run.id, run.job)
    else
        redis.call('DEL', run.id)
    end
end

-- It is not over: it waits for its next attempt, for a worker, or for a circuit.
local function give_back(keys, run)
    redis.call('SET', run.id, run.job)
    if run.kind == 'retry' then
        redis.call('ZADD', keys.incomplete, string.format('%.3f', clock() / 1000000 + run.number), run.id)
    elseif run.kind == 'release' then
        redis.call('ZADD', keys.incomplete, 0, run.id)
        redis.call('LPUSH', keys.queued, run.id)
    else
        redis.call('ZADD', keys.incomplete, FAR_FUTURE, run.id)
        redis.call('RPUSH', parked_key(run.list), run.id)
        redis.call('SADD', keys.parked_on, run.list)
    end
end

local function is_mine(keys, run, lock)
    if run.service ~= '' then return owned(lock, run.token) end
    -- Without a readable task there is no lock: its place is the claim.
    return redis.call('ZSCORE', keys.active, run.id)
end

local function leaves_marker(run) return run.kind == 'settle' and run.marker ~= '' end

-- What is to be said of a run that is not its owner's: that it was ended before, or that it is somebody else's by now.
local function stale(keys, run)
    if leaves_marker(run) then
        local marker = read(marker_key(run.service, run.record))
        if field(marker, 'token') == run.token then return 'settled' end
    elseif redis.call('EXISTS', ended_key(run.token)) == 1 then
        return 'settled'
    end
    redis.pcall('HINCRBY', keys.counters, 'stale', 1)
    return 'stale'
end

-- Ends one run, except for what settle does for all: its lock, its place among the running and the unsettled.
local function settle_one(keys, run, unwanted)
    if not leaves_marker(run) then redis.call('SET', ended_key(run.token), '', 'PX', REMEMBERED) end
    if unwanted then redis.call('SREM', keys.aborts, run.id) end
    if run.kind == 'settle' then
        conclude(keys, run)
    elseif unwanted and not run.replaced then
        end_aborted(keys, run.id, aborted_text(run.job, math.floor(clock() / 1000)), ABORTED_VISIBLE)
        return
    elseif not run.replaced then
        give_back(keys, run)
    end
    if run.replaced then return leave_to_next(keys, run.id) end
    if run.deaths == '-' then
        redis.call('HDEL', keys.deaths, run.id)
    elseif run.deaths ~= '' then
        redis.call('HSET', keys.deaths, run.id, run.deaths)
    end
    redis.call('PUBLISH', run.id, run.status)
end

local function settle(keys, runs)
    if #runs == 0 then return {} end
    local ids, texts_of = {}, {}
    for at, run in ipairs(runs) do
        ids[at], texts_of[at], texts_of[#runs + at] = run.id, lock_key(run.service, run.record), run.id
    end
    local texts, asked = of_all('MGET', texts_of), of_all('SMISMEMBER', ids, keys.aborts)
    local answers, mine, free, idle, over = {}, {}, {}, {}, {}
    for at, run in ipairs(runs) do
        if not is_mine(keys, run, texts[at]) then
            answers[at] = stale(keys, run)
        else
            local ok, problem = pcall(check, keys, run, asked[at] == 1)
            local said = type(problem) == 'table' and problem.err or tostring(problem)
            answers[at] = ok and 'settled' or 'error: ' .. said
            if ok then
                run.replaced = replaced(texts[#runs + at])
                mine[#mine + 1] = {run, asked[at] == 1}
                idle[#idle + 1] = run.id
                if run.service ~= '' then free[#free + 1] = texts_of[at] end
                if run.kind == 'settle' and not run.replaced then over[#over + 1] = run.id end
            end
        end
    end
    -- First what is the same for all: one of these that is no sorted set fails here, before anything was recorded.
    if #idle > 0 then of_all('ZREM', idle, keys.active) end
    if #over > 0 then of_all('ZREM', over, keys.incomplete) end
    for _, pair in ipairs(mine) do settle_one(keys, unpack(pair)) end
    if #free > 0 then of_all('DEL', free) end
    return answers
end
