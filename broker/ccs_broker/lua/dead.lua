-- Dead: move a raw message that can't be understood from its list to the dead letters, bounded, and tell its producer.
-- include: lib_clock lib_events lib_outcome
--
-- KEYS[1] list it lies on, or an unused name   KEYS[2] ccs:dead
-- ARGV[1] raw bytes as they lie there, empty if already popped   ARGV[2] the dead letter JSON
-- ARGV[3] most dead letters kept   ARGV[4] TTL s
-- ARGV[5] id of the task that the message was, or empty   ARGV[6] what Celery's result says then   ARGV[7] its TTL s
-- Returns 1, or 0 if somebody else had moved it
if ARGV[1] ~= '' and redis.call('LREM', KEYS[1], -1, ARGV[1]) == 0 then return 0 end
redis.call('LPUSH', KEYS[2], ARGV[2])
redis.call('LTRIM', KEYS[2], 0, tonumber(ARGV[3]) - 1)
redis.call('EXPIRE', KEYS[2], ARGV[4])
-- Anybody can write any id: a task that is here, or has a result, keeps its own.
if ARGV[5] ~= '' and redis.call('EXISTS', 'ccs:job:' .. ARGV[5]) == 0 then
  local meta, failure = 'celery-task-meta-' .. ARGV[5], celery_failure(ARGV[5], 'FAILURE', 'InvalidInputError', ARGV[6])
  if redis.call('SET', meta, failure, 'NX', 'EX', ARGV[7]) then redis.call('PUBLISH', meta, failure) end
end
return 1
