-- step.lua: end some runs and claim the next jobs, in one round trip.
-- KEYS  of the queue
-- ARGV  job id prefix, worker, lease (ms), lane, n to claim, then FIELDS values for each run that ended, the first of
--       which is `kind token status number marker_ms deaths`
-- -> {answers of settle in order, what claim took}
-- One run whose end cannot be written answers with its error and spoils none of the others.

local FIELDS = 9
local HEAD = '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S*)$'
local keys = queue_keys()
local answers = {}
for at = 6, #ARGV, FIELDS do
    local kind, token, status, number, marker_ms, deaths = string.match(ARGV[at], HEAD)
    local ok, answer = pcall(settle, keys, {
        kind = kind, id = ARGV[at + 1], service = ARGV[at + 2], record = ARGV[at + 3], token = token,
        job = ARGV[at + 4], status = status, number = tonumber(number),
        marker = ARGV[at + 5], marker_ms = marker_ms, entry = ARGV[at + 6],
        letter = ARGV[at + 7], list = ARGV[at + 8], deaths = deaths,
    })
    answers[#answers + 1] = ok and answer or ('error: ' .. (type(answer) == 'table' and answer.err or tostring(answer)))
end
return {answers, claim(keys, ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5]))}
