-- Cancel: a waiting or delayed job ends at once; a running one is flagged and ends at its next step.
-- include: lib_clock lib_events lib_outcome
--
-- KEYS[1] ccs:job:<id>
-- ARGV[1] id   ARGV[2] ticket   ARGV[3] job TTL s   ARGV[4] log TTL s   ARGV[5] blob grace s
-- A plain task that waits is dropped, and Celery told that it was revoked; one that runs is not ours to stop.
-- Returns "missing" | "cancelled" | "cancelling" | the state in which it had ended before
local job = redis.call('HMGET', KEYS[1], 'state', 'queue', 'attempt', 'kind')
local id = ARGV[1]
if not job[1] then return 'missing' end
if job[1] == 'running' then
  if job[4] ~= 'job' then return 'running' end
  redis.call('HSET', KEYS[1], 'cancel', '1')
  -- The flag is the fact; this only tells the worker sooner than its next append or renewal.
  redis.call('PUBLISH', 'ccs:control', id .. '|' .. job[3])
  return 'cancelling'
end
if job[1] ~= 'waiting' and job[1] ~= 'delayed' then return job[1] end
redis.call('ZREM', 'ccs:delayed', id)
if redis.call('ZREM', 'ccs:waiting:' .. job[2], id) > 0 then redis.call('LREM', job[2] .. ':1', -1, ARGV[2]) end
if job[4] ~= 'job' then
  drop_task(id, {ARGV[3], ARGV[4], ARGV[5]})
  return 'cancelled'
end
local attempts = tonumber(job[3]) or 0
end_job(id, 'cancelled', attempts, math.floor(now_us() / 1000), bare_outcome('cancelled', attempts),
  '{"stage":"waiting"}', {ARGV[3], ARGV[4], ARGV[5]}, celery_failure(id, 'REVOKED', 'TaskRevokedError', 'cancelled'))
return 'cancelled'
