-- Ack: Celery is done with a delivery. A job that has no outcome by then could not even be started: quarantine.
-- include: lib_clock lib_events lib_outcome lib_waiting lib_leaving lib_pipeline
--
-- KEYS[1] ccs:job:<id>   KEYS[2] ccs:running
-- ARGV[1] id   ARGV[2] attempt   ARGV[3] job TTL s   ARGV[4] log TTL s   ARGV[5] blob grace s
-- ARGV[6] ticket
-- Returns "done" | "deleted" | "quarantined" | "newer"
redis.call('ZREM', KEYS[2], ARGV[1] .. '|' .. ARGV[2])
local job = redis.call('HMGET', KEYS[1], 'state', 'attempt', 'kind', 'links', 'cost_us')
if job[2] ~= ARGV[2] then return 'newer' end
if job[1] ~= 'running' then
  -- What Celery had to do after the outcome is done. (A retry waits under the same attempt, with a message of its own.)
  if job[4] then redis.call('HDEL', KEYS[1], 'links', 'msg') end
  return 'done'
end
stops_running(job[5])
if job[3] == 'task' then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', 'ccs:expiry', ARGV[1])
  return 'deleted'
end
local message = 'the delivery was acknowledged without an outcome'
end_job(ARGV[1], 'quarantined', ARGV[2], math.floor(now_us() / 1000),
  bare_outcome('quarantined', ARGV[2], 'INTERNAL', message, false), error_data('INTERNAL', message, 'running'),
  {ARGV[3], ARGV[4], ARGV[5], ARGV[6]}, celery_failure(ARGV[1], 'FAILURE', 'InternalError', message))
return 'quarantined'
