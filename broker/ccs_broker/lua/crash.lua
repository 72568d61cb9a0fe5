-- Crash: the engine died under an attempt; count it where a dead worker can't forget it, and once however often told.
--
-- KEYS[1] ccs:job:<id>
-- ARGV[1] attempt   ARGV[2] outputs so far, a number that grows with progress   ARGV[3] "1" if it ran alone
-- ARGV[4] number of this death, unlike that of any other under this attempt
-- Returns {crashes without progress, crashes alone}, or {-1, -1} if the attempt no longer holds the job
local job = redis.call('HMGET', KEYS[1], 'state', 'attempt', 'crash_mark', 'crash_seen', 'crashes', 'crashes_alone')
if job[1] ~= 'running' or job[2] ~= ARGV[1] then return {-1, -1} end
local seen = ARGV[1] .. ' ' .. ARGV[4]
if job[4] == seen then return {tonumber(job[5]), tonumber(job[6])} end
local alone = redis.call('HINCRBY', KEYS[1], 'crashes_alone', ARGV[3] == '1' and 1 or 0)
local crashes = 1
if job[3] and tonumber(ARGV[2]) <= tonumber(job[3]) then
  crashes = tonumber(job[5]) + 1
  redis.call('HSET', KEYS[1], 'crashes', crashes, 'crash_seen', seen)
else
  redis.call('HSET', KEYS[1], 'crashes', crashes, 'crash_seen', seen, 'crash_mark', ARGV[2])
end
return {crashes, alone}
