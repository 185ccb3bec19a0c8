-- parked.lua: jobs that wait for a circuit, or for a pause to end, and how they come back to their queues.
-- Invariant: an id leaves the list once it is queued. Each goes to the queue on which it is unsettled. One that no
-- longer waits here was aborted, or released by hand, and is dropped; one whose queue cannot be written to goes to the
-- list's end, behind those whose can.

-- The queue on which a job is unsettled, and its due time there. Queues' names may hold colons, as jobs' keys do: only
-- the server knows where the name ends.
local function home_of(id)
    local colon = string.sub(id, 1, 8) == 'saq:job:' and string.find(id, ':', 9, true)
    while colon do
        local queue = string.sub(id, 9, colon - 1)
        local due = redis.pcall('ZSCORE', 'saq:' .. queue .. ':incomplete', id)
        if type(due) == 'string' then return queue, tonumber(due) end
        colon = string.find(id, ':', colon + 1, true)
    end
end

-- The queue of a job that still waits here.
local function parked_at(id)
    local queue, due = home_of(id)
    return queue and due >= FAR_FUTURE and queue
end

-- To the head of its queue; false where that cannot be written to.
local function queue_again(queue, id)
    if type(redis.pcall('LPUSH', 'saq:' .. queue .. ':queued', id)) ~= 'number' then return false end
    redis.call('ZADD', 'saq:' .. queue .. ':incomplete', 0, id)
    return true
end

-- As many as wait there, `most` of them; the numbers taken from the list, and queued of them.
local function unpark(list, most)
    local ids = redis.call('LRANGE', list, 0, most - 1)
    local moved = 0
    for at = #ids, 1, -1 do  -- to the heads of their queues, the oldest last
        local queue = parked_at(ids[at])
        if queue and queue_again(queue, ids[at]) then
            moved = moved + 1
        elseif queue then
            redis.call('RPUSH', list, ids[at])
        end
    end
    if #ids > 0 then redis.call('LPOP', list, #ids) end
    return #ids, moved
end
