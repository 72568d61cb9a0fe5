-- Release: hand a claimed delivery back to its old place among the waiting, to be started or continued by another.
-- include: lib_clock lib_events lib_waiting lib_leaving
--
-- KEYS[1] ccs:job:<id>   KEYS[2] ccs:running
-- ARGV[1] id   ARGV[2] attempt   ARGV[3] ticket   ARGV[4] data JSON of a `preempted` event, empty for none; where its
--         reason is "preempted", a more urgent job took the place, which is counted
-- Returns 1, or 0 if the attempt no longer holds the job
redis.call('ZREM', KEYS[2], ARGV[1] .. '|' .. ARGV[2])
local job = redis.call('HMGET', KEYS[1], 'state', 'attempt', 'cost_us')
if job[1] ~= 'running' or job[2] ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'state', 'waiting')
stops_running(job[3])
if ARGV[4] ~= '' then
  append_event(ARGV[1], 'preempted', ARGV[2], math.floor(now_us() / 1000), '', ARGV[4], '')
  if cjson.decode(ARGV[4]).reason == 'preempted' then redis.call('HINCRBY', KEYS[1], 'preempted', 1) end
end
enqueue(ARGV[1], waiting_job(ARGV[1]), ARGV[3])
return 1
