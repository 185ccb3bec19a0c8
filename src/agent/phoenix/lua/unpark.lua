-- unpark.lua: put jobs that wait for a circuit, or for a pause to end, back on their queues, before what came later.
-- KEYS  the circuit's list of parked ids; and, for a worker, the set of circuits that hold jobs of its queue
-- ARGV  most to move, the circuit
-- -> {number taken from the list, number queued of them}

local taken, moved = unpark(KEYS[1], tonumber(ARGV[1]))
if KEYS[2] and redis.call('LLEN', KEYS[1]) == 0 then redis.call('SREM', KEYS[2], ARGV[2]) end
return {taken, moved}
