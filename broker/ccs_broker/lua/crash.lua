-- Crash: the engine died under an attempt; count it where a dead worker can't forget it.
--
-- KEYS[1] ccs:job:<id>
-- ARGV[1] attempt   ARGV[2] outputs so far, a number that grows with progress   ARGV[3] "1" if it ran alone
-- Returns {crashes without progress, crashes alone}, or {-1, -1} if the attempt no longer holds the job
local job = redis.call('HMGET', KEYS[1], 'state', 'attempt', 'crash_mark')
if job[1] ~= 'running' or job[2] ~= ARGV[1] then return {-1, -1} end
local alone = redis.call('HINCRBY', KEYS[1], 'crashes_alone', ARGV[3] == '1' and 1 or 0)
local crashes
if job[3] and tonumber(ARGV[2]) <= tonumber(job[3]) then
  crashes = redis.call('HINCRBY', KEYS[1], 'crashes', 1)
else
  crashes = 1
  redis.call('HSET', KEYS[1], 'crashes', 1, 'crash_mark', ARGV[2])
end
return {crashes, alone}
