-- unpark.lua: put jobs that wait for a circuit, or for a pause to end, back on their queues, before what came later.
-- KEYS  the circuit's list of parked ids; and, for a worker, the set of circuits that hold jobs of its queue
-- ARGV  most to move, the circuit
-- -> {number taken from the list, number queued of them}
-- Invariant: an id leaves the list once it is queued. Each goes to the queue on which it is unsettled. One that no
-- longer waits here was aborted, or released by hand, and is dropped; one whose queue cannot be written to goes to the
-- list's end, behind those whose can.

-- The queue on which a job is unsettled, as its keys `queued` and `incomplete`, and its due time there. Queues' names
-- may hold colons, as jobs' keys do: only the server knows where the name ends.
local function home_of(id)
    local colon = string.sub(id, 1, 8) == 'saq:job:' and string.find(id, ':', 9, true)
    while colon do
        local home = 'saq:' .. string.sub(id, 9, colon - 1)
        local due = redis.pcall('ZSCORE', home .. ':incomplete', id)
        if type(due) == 'string' then return home .. ':queued', home .. ':incomplete', tonumber(due) end
        colon = string.find(id, ':', colon + 1, true)
    end
end

local ids = redis.call('LRANGE', KEYS[1], 0, tonumber(ARGV[1]) - 1)
local moved = 0
for at = #ids, 1, -1 do  -- to the heads of their queues, the oldest last
    local id = ids[at]
    local queued, incomplete, due = home_of(id)
    if queued and due >= FAR_FUTURE then
        if type(redis.pcall('LPUSH', queued, id)) == 'number' then
            redis.call('ZADD', incomplete, 0, id)
            moved = moved + 1
        else
            redis.call('RPUSH', KEYS[1], id)
        end
    end
end
if #ids > 0 then redis.call('LPOP', KEYS[1], #ids) end
if KEYS[2] and redis.call('LLEN', KEYS[1]) == 0 then redis.call('SREM', KEYS[2], ARGV[2]) end
return {#ids, moved}
