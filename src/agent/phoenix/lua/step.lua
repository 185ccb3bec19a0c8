-- step.lua: end some runs and claim the next jobs, in one round trip.
-- KEYS  of the queue
-- ARGV  job id prefix, worker, lease (ms), lane, n to claim, then FIELDS values for each run that ended
-- -> {answers of settle in order, what claim took}
-- One run whose end cannot be written answers with its error and spoils none of the others.

local FIELDS = 14
local keys = queue_keys()
local answers = {}
for at = 6, #ARGV, FIELDS do
    local ok, answer = pcall(settle, keys, {
        kind = ARGV[at], id = ARGV[at + 1], service = ARGV[at + 2], record = ARGV[at + 3], token = ARGV[at + 4],
        job = ARGV[at + 5], status = ARGV[at + 6], number = tonumber(ARGV[at + 7]),
        marker = ARGV[at + 8], marker_ms = ARGV[at + 9], entry = ARGV[at + 10],
        letter = ARGV[at + 11], list = ARGV[at + 12], deaths = ARGV[at + 13],
    })
    answers[#answers + 1] = ok and answer or ('error: ' .. (type(answer) == 'table' and answer.err or tostring(answer)))
end
return {answers, claim(keys, ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5]))}
