-- consumers.lua: forget the consumers of bridges that are gone.
-- ARGV  service, idle (ms), a consumer to be forgotten however lately it was heard of, or ''
-- -> the number forgotten
-- Invariant: one that has an entry pending stays: with its name the server would forget that the entry was taken, and
-- nobody would be given it again. Looked at and deleted in this one step.

local stream, group = stream_key(ARGV[1]), group_name(ARGV[1])
local forgotten = 0
for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
    local said = {}
    for at = 1, #row, 2 do said[row[at]] = row[at + 1] end
    local gone = said.name == ARGV[3] or said.idle >= tonumber(ARGV[2])
    if gone and said.pending == 0 then
        redis.call('XGROUP', 'DELCONSUMER', stream, group, said.name)
        forgotten = forgotten + 1
    end
end
return forgotten
