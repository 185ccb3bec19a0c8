-- step.lua: end some runs and claim the next jobs, in one round trip.
-- KEYS  of the queue
-- ARGV  job id prefix, worker, lease (ms), lane, n to claim, then FIELDS values for each run that ended, the first of
--       which is `kind token status number marker_ms more deaths`, and after them `more` values of its stage
-- -> {answers of settle in order, what claim took, 1 if there is more to look at}

local FIELDS = 9
local HEAD = '^(%S+) (%S+) (%S+) (%S+) (%S+) (%d+) (%S*)$'
local keys = queue_keys()
local runs = {}
local at = 6
while at <= #ARGV do
    local kind, token, status, number, marker_ms, more, deaths = string.match(ARGV[at], HEAD)
    runs[#runs + 1] = {
        kind = kind, id = ARGV[at + 1], service = ARGV[at + 2], record = ARGV[at + 3], token = token,
        job = ARGV[at + 4], status = status, number = tonumber(number),
        marker = ARGV[at + 5], marker_ms = tonumber(marker_ms), entry = ARGV[at + 6],
        letter = ARGV[at + 7], list = ARGV[at + 8], deaths = deaths,
    }
    at = at + FIELDS
    if more ~= '0' then
        runs[#runs].stage = {unpack(ARGV, at, at + more - 1)}
        at = at + more
    end
end
local answers = settle(keys, runs)
local ok, taken, more = pcall(claim, keys, ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5]))
if not ok and #runs == 0 then error(taken) end  -- what was settled is said all the same; the next claim fails alone
return {answers, ok and taken or {}, ok and more and 1 or 0}
