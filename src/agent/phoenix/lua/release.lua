-- release.lua: let go of a queue's parked jobs what may go, whatever number of circuits holds them.
-- KEYS  the set of circuits (and of `paused:` and a name) that hold jobs of the asker's queue
-- ARGV  the queue, the slots of the worker that asks, probes of a circuit, most to move
-- -> the number of jobs let go, or dropped because they wait here no longer
-- Behind a circuit that is closed, and a pause that is over, all may go. One that may be probed lets go a job for each
-- permit that is free, less those that it let go before and that still wait for a worker; and no more of all circuits
-- wait on one queue than the asker has slots. The circuit that was not looked at for longest is looked at first.
-- Invariant: while nothing may go, it costs the same few commands for one circuit as for thousands.

local on, slots, probes, most = KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local LOOKED_AT = 100      -- ids at a list's head among which a probe is looked for
local AT_ONCE = 5000       -- names that one command takes

local names = redis.call('SMEMBERS', on)
if #names == 0 then return 0 end
local now = math.floor(clock() / 1000)

-- The names that let all go, and those of circuits that may be probed, the one that waits longest first.
local function sorted_out()
    local circuits, paused, stripped, free, due = {}, {}, {}, {}, {}
    for _, name in ipairs(names) do
        local task = string.match(name, '^paused:(.*)$')
        if task then
            paused[#paused + 1], stripped[#stripped + 1] = name, task
        else
            circuits[#circuits + 1] = name
        end
    end
    for first = 1, #circuits, AT_ONCE do
        local some = {unpack(circuits, first, math.min(first + AT_ONCE - 1, #circuits))}
        for at, from in ipairs(of_all('ZMSCORE', some, HELD)) do
            if not from then
                free[#free + 1] = some[at]
            elseif tonumber(from) <= now then
                due[#due + 1] = {name = some[at], from = tonumber(from)}
            end
        end
    end
    if #paused > 0 then
        for at, still in ipairs(of_all('SMISMEMBER', stripped, PAUSED)) do
            if still == 0 then free[#free + 1] = paused[at] end
        end
    end
    table.sort(due, function(one, other) return one.from < other.from end)
    return free, due
end

local function release_all(name, number)
    local taken = unpark(parked_key(name), number)
    if redis.call('LLEN', parked_key(name)) == 0 then redis.call('SREM', on, name) end
    return taken
end

-- What was let go to probe and still waits for a worker of `queue`: {number of all, circuit -> number}.
local known = {}
local function waiting(queue)
    if known[queue] then return known[queue] end
    local found, ids, circuits = {all = 0, of = {}}, {}, {}
    local members = redis.call('SMEMBERS', let_go_key(queue))
    for at, member in ipairs(members) do
        local bytes, rest = string.match(member, '^(%d+):(.*)$')
        circuits[at], ids[at] = string.sub(rest, 1, bytes), string.sub(rest, bytes + 1)
    end
    if #ids > 0 then
        local due = of_all('ZMSCORE', ids, 'saq:' .. queue .. ':incomplete')
        local running = of_all('ZMSCORE', ids, 'saq:' .. queue .. ':active')
        for at, member in ipairs(members) do
            if due[at] and tonumber(due[at]) == 0 and not running[at] then
                found.all = found.all + 1
                found.of[circuits[at]] = (found.of[circuits[at]] or 0) + 1
            else
                redis.call('SREM', let_go_key(queue), member)
            end
        end
    end
    known[queue] = found
    return found
end

-- Ids at a list's head that may go to probe, with their queues. Those of queues on which enough of them wait stay; they
-- go to the list's end where they hide all that is behind them.
local function chosen(name, room, number)
    local list, picked, full, prefixes = parked_key(name), {}, {}, {}
    local ids = redis.call('LRANGE', list, 0, LOOKED_AT - 1)
    for _, id in ipairs(ids) do
        if #picked == math.min(room, number) then break end
        local is_full = false
        for _, prefix in ipairs(prefixes) do is_full = is_full or string.sub(id, 1, #prefix) == prefix end
        local queue = not is_full and parked_at(id)
        local there = queue and waiting(queue)
        if is_full then
            full[#full + 1] = id
        elseif not queue then
            redis.call('LREM', list, 1, id)
        elseif there.all < slots and (there.of[name] or 0) < room then
            there.all, there.of[name] = there.all + 1, (there.of[name] or 0) + 1
            picked[#picked + 1] = {id = id, queue = queue}
        else
            full[#full + 1] = id
            prefixes[#prefixes + 1] = 'saq:job:' .. queue .. ':'
        end
    end
    if #full == LOOKED_AT then
        redis.call('LPOP', list, #full)
        redis.call('RPUSH', list, unpack(full))
    end
    return picked
end

-- What of the jobs behind a circuit may probe it, `number` at most.
local function release_probes(name, number)
    local room = probes - redis.call('ZCOUNT', permits_key(name), '(' .. decimal(now), '+inf')
    if room < 1 then return 0 end
    local state, forced = unpack(redis.call('HMGET', breaker_key(name), 'state', 'forced'))
    if forced == 'closed' or not state or state == 'closed' then  -- somebody deleted it: from now on all may go
        redis.call('ZREM', HELD, name)
        return 0
    end
    local picked, moved = chosen(name, room, number), 0
    for at = #picked, 1, -1 do  -- to the heads of their queues, the oldest last
        local id, queue = picked[at].id, picked[at].queue
        redis.call('LREM', parked_key(name), 1, id)
        if queue_again(queue, id) then
            redis.call('SADD', let_go_key(queue), #name .. ':' .. name .. id)
            moved = moved + 1
        else
            redis.call('RPUSH', parked_key(name), id)
        end
    end
    if redis.call('LLEN', parked_key(name)) == 0 then redis.call('SREM', on, name) end
    return moved
end

local free, due = sorted_out()
local moved, left = 0, most
for _, name in ipairs(free) do
    if left < 1 then break end
    local ok, number = pcall(release_all, name, left)  -- one bad entry never spoils the others
    number = ok and number or 0
    moved, left = moved + number, left - math.max(1, number)
end
if #due == 0 then return moved end
local here = waiting(ARGV[1])
local room, looks = slots - here.all, slots
for _, circuit in ipairs(due) do
    if room < 1 or looks < 1 then break end
    if (here.of[circuit.name] or 0) < probes then
        local ok, number = pcall(release_probes, circuit.name, room)
        number = ok and number or 0
        room, looks, moved = room - number, looks - 1, moved + number
        redis.call('ZADD', HELD, 'XX', decimal(now), circuit.name)  -- the others come first the next time
    end
end
return moved
