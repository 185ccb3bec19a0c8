-- relay.lua: what was delivered leaves the outbox, and whoever has the turn gets what is next.
-- KEYS  whose turn it is, the outbox, what was refused
-- ARGV  who asks, how long a turn lasts (ms), entries and bytes at most (one entry alone may be larger), how many of the
--       refused are kept, then for each entry that the control plane has answered its id, and why not or ''
-- -> false if it is another's turn, else the oldest entries: id, entry, id, entry ...
-- Invariant: what is refused is kept in the step in which it leaves the outbox.

local turn, outbox, refused = KEYS[1], KEYS[2], KEYS[3]
local most, bytes = tonumber(ARGV[3]), tonumber(ARGV[4])

local function entry_of(row)
    for at = 1, #row[2], 2 do
        if row[2][at] == 'entry' then return row[2][at + 1] end
    end
    return ''
end

demand(outbox, 'stream')
for at = 6, #ARGV, 2 do
    local id, reason = ARGV[at], ARGV[at + 1]
    local row = reason ~= '' and redis.call('XRANGE', outbox, id, id)[1]
    if row then
        demand(refused, 'stream')
        redis.call('XADD', refused, 'MAXLEN', '~', ARGV[5], '*', 'reason', reason, 'entry', entry_of(row))
    end
    redis.call('XDEL', outbox, id)
end

local holder = redis.call('GET', turn)
if holder and holder ~= ARGV[1] then return false end
redis.call('SET', turn, ARGV[1], 'PX', ARGV[2])

-- One by one: nobody knows how large the next one is, and what is not sent need not be read.
local found, size, from = {}, 0, '-'
while #found < 2 * most do
    local row = redis.call('XRANGE', outbox, from, '+', 'COUNT', 1)[1]
    if not row then break end
    local entry = entry_of(row)
    size = size + #entry
    if size > bytes and #found > 0 then break end
    found[#found + 1], found[#found + 2] = row[1], entry
    from = '(' .. row[1]
end
return found
