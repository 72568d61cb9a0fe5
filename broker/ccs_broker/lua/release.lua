-- Release: hand a claimed delivery back, unstarted, to its old place among the waiting.
-- include: lib_clock lib_tickets
--
-- KEYS[1] ccs:job:<id>   KEYS[2] ccs:running
-- ARGV[1] id   ARGV[2] attempt   ARGV[3] ticket
-- Returns 1, or 0 if the attempt no longer holds the job
redis.call('ZREM', KEYS[2], ARGV[1] .. '|' .. ARGV[2])
local job = redis.call('HMGET', KEYS[1], 'state', 'attempt', 'queue', 'score')
if job[1] ~= 'running' or job[2] ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'state', 'waiting')
enqueue(ARGV[1], job[3], job[4], ARGV[3])
return 1
