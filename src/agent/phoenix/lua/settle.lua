-- settle.lua: end one run of a job, by the owner of its lease: record a result once, or give the job back.
-- In   keys of the queue, and the end of the run:
--        kind     'settle' (it is over) | 'retry' (later) | 'release' (at once, to the head) | 'park' (on a circuit)
--        id, service, record, token
--        job      the stored job from now on
--        status   what listeners are told
--        number   settle: how long the job stays visible (ms; 0 for ever, -1 not at all); retry: wait (s)
--        marker, marker_ms   what is known of the record from now on, and for how long; '' leaves the marker alone
--        entry    for the outbox: '', or '=' for the same text as the marker
--        letter, list        a dead letter or a case for quarantine and where it goes, or ''; park: list is the circuit
--        deaths   what is known of its deaths: '' as before, '-' forget them, else `takeovers:own`
-- Out  'settled' | 'stale'; a settle that is sent again answers 'settled'
-- Invariant: marker, outbox entry, release of the lock and acknowledgement happen together or not at all. A stale
-- owner changes nothing and is counted. A job that was asked to end is not given back.

local function settle(keys, run)
    local lock_key = 'lock:' .. run.service .. ':' .. run.record
    local marker_key = 'processed:' .. run.service .. ':' .. run.record
    local marker = run.marker
    local entry = run.entry == '=' and marker or run.entry
    local mine
    if run.service == '' then  -- there is no lock for a job without a readable task: its place in `active` is the claim
        mine = redis.call('ZSCORE', keys.active, run.id)
    else
        mine = owned(redis.call('GET', lock_key), run.token)
    end
    if not mine then
        if run.kind == 'settle' and marker ~= '' and field(redis.call('GET', marker_key), 'token') == run.token then
            return 'settled'
        end
        redis.call('HINCRBY', keys.counters, 'stale', 1)
        return 'stale'
    end

    if run.service ~= '' then redis.call('DEL', lock_key) end
    if run.deaths == '-' then
        redis.call('HDEL', keys.deaths, run.id)
    elseif run.deaths ~= '' then
        redis.call('HSET', keys.deaths, run.id, run.deaths)
    end
    redis.call('ZREM', keys.active, run.id)
    local unwanted = redis.call('SREM', keys.aborts, run.id) == 1
    if unwanted and run.kind ~= 'settle' then
        end_aborted(keys, run.id, aborted_text(run.job, math.floor(clock() / 1000)), ABORTED_VISIBLE)
        return 'settled'
    end
    if run.kind == 'settle' then
        if marker ~= '' then redis.call('SET', marker_key, marker, 'PX', run.marker_ms) end
        if entry ~= '' then redis.call('XADD', keys.outbox, '*', 'entry', entry) end
        if run.letter ~= '' then redis.call('RPUSH', run.list, run.letter) end
        redis.call('ZREM', keys.incomplete, run.id)
        if run.number > 0 then
            redis.call('SET', run.id, run.job, 'PX', decimal(run.number))
        elseif run.number == 0 then
            redis.call('SET', run.id, run.job)
        else
            redis.call('DEL', run.id)
        end
    else
        redis.call('SET', run.id, run.job)
        if run.kind == 'retry' then
            redis.call('ZADD', keys.incomplete, string.format('%.3f', clock() / 1000000 + run.number), run.id)
        elseif run.kind == 'release' then
            redis.call('ZADD', keys.incomplete, 0, run.id)
            redis.call('LPUSH', keys.queued, run.id)
        else
            redis.call('ZADD', keys.incomplete, 4102444800, run.id)
            redis.call('RPUSH', 'phoenix:parked:' .. run.list, run.id)
            redis.call('SADD', keys.parked_on, run.list)
        end
    end
    redis.call('PUBLISH', run.id, run.status)
    return 'settled'
end
