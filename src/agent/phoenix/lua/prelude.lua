-- prelude.lua: what every script stands on. Put before each of them; tests replace `clock` to move time.

-- Microseconds since 1970 on the server's clock. Exact: below 2^53 until the year 2255.
local function clock()
    local time = redis.call('TIME')
    return time[1] * 1000000 + time[2]
end

-- A whole number in decimal; Lua's own conversion turns large ones into 1.7e+15.
local function decimal(number)
    return string.format('%.0f', number)
end

-- A string; false for none, and for a key of another type, with which GET would end the script.
local function read(key)
    return redis.call('MGET', key)[1]
end

-- A field of a lock or a marker, which we wrote ourselves, without escapes.
local function field(json, name)
    return json and string.match(json, '"' .. name .. '": "([^"]*)"')
end

-- Whether a lock is held with this token.
local function owned(lock, token)
    return lock and field(lock, 'token') == token
end

-- The end of a lock's lease in milliseconds; 0 for none.
local function lease_end(lock)
    return tonumber(lock and string.match(lock, '"until": (%d+)}$') or 0)
end

-- Our own fields at the end of a stored job, as a claim or a takeover left them. `group_key` is null in every SAQ job
-- on Redis, so that this sequence occurs nowhere else at the end of one.
local SUFFIX_BEGINS = ', "group_key": null, "status": "'
local SUFFIX = ', "group_key": null, "status": "%a+", "started": %d+, "touched": %d+, "worker_id": "[^"]*"}$'

-- Where the last brace of a stored job stands; nil for a text that is none. Blanks may follow it.
local function last_brace(job)
    local last = #job
    while last > 0 and string.find(job, '^%s', last) do last = last - 1 end
    return string.sub(job, last, last) == '}' and last or nil
end

-- A stored job with another status, start and worker: its own text is kept to the letter, ours is replaced. A text that
-- is no job stays as it is.
local function restated(job, status, started, now, worker)
    local last = last_brace(job)
    if not last then return job end
    local at = string.find(job, SUFFIX_BEGINS, 1, true) and string.find(job, SUFFIX)
    return string.sub(job, 1, (at or last) - 1) .. SUFFIX_BEGINS
        .. string.format('%s", "started": %.0f, "touched": %.0f, "worker_id": "%s"}', status, started, now, worker)
end

-- Whom the end of a stored job names as its worker.
local function worker_of(job)
    return string.match(job, ', "worker_id": "([^"]*)"}$')
end

-- Whether another job was enqueued under the id of one that runs: a plain SAQ abort sets its key free. A claim's own
-- text is known by its end, and only another is decoded; cjson refuses lone surrogates, which names of files may hold.
local RUNS_BEGINS, SUFFIX_LENGTH = SUFFIX_BEGINS .. 'active"', 400
local function replaced(job)
    if not job or string.find(job, RUNS_BEGINS, math.max(1, #job - SUFFIX_LENGTH), true) then return false end
    local ok, decoded = pcall(cjson.decode, job)
    if not ok then return string.match(job, '.*"status":%s*"(%a+)"') == 'queued' end
    return type(decoded) == 'table' and decoded.status == 'queued'
end

-- Due when something other than the clock releases it (2100-01-01).
local FAR_FUTURE = 4102444800

-- Keys that a script finds out for itself, as keys.py builds them.
local function lock_key(service, record) return 'lock:' .. service .. ':' .. record end
local function marker_key(service, record) return 'processed:' .. service .. ':' .. record end
local function parked_key(circuit) return 'phoenix:parked:' .. circuit end
local PAUSED = 'phoenix:paused'
local HELD = 'phoenix:circuits:held'
local PROBES = 'phoenix:probes'
local USER_PROBES = 'phoenix:probes:users'
local function breaker_key(circuit) return 'phoenix:breaker:' .. circuit end
local function permits_key(circuit) return 'phoenix:permits:' .. circuit end
local function let_go_key(queue) return 'phoenix:let-go:' .. queue end
local function ended_key(token) return 'phoenix:ended:' .. token end
local function stream_key(service) return 'phoenix:' .. service .. ':input' end
local function group_name(service) return service .. '-group' end
local function entries_key(service) return 'phoenix:' .. service .. ':entries' end
local function pages_key(record) return 'pages:' .. record end
local function pages_version_key(record) return 'phoenix:pages-of:' .. record end
local function progress_channel(record) return 'phoenix:progress:' .. record end

-- The service and the record that a job's key names; nil where it names none.
local function named_by(key)
    return string.match(key, '^([^:]*):(.+)$')
end

-- Raises where a key is of another type than it should be. Each key is looked at once in a script.
local sound = {}
local function demand(key, kind)
    if sound[key] then return end
    local is = redis.call('TYPE', key).ok
    if is ~= kind and is ~= 'none' then error(key .. ' is a ' .. is .. ', not a ' .. kind .. '; rename it', 0) end
    sound[key] = true
end

-- The same for a number of milliseconds or seconds. Later ends do not fit the server's clock.
local LONGEST = 1e15
local function demand_number(what, number, least)
    if not number or not (number >= least and number <= LONGEST) then  -- NaN is neither
        error(what .. ' is no number that the server can keep: ' .. tostring(number), 0)
    end
end

-- The keys of one queue, in the order in which every script is given them.
local function queue_keys()
    return {
        queued = KEYS[1], active = KEYS[2], incomplete = KEYS[3], outbox = KEYS[4],
        deaths = KEYS[5], aborts = KEYS[6], parked_on = KEYS[7], counters = KEYS[8],
    }
end
