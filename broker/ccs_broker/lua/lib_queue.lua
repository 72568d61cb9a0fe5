-- Shared: end a job that waited too long, start one whose delay is over. Needs lib_clock, lib_tickets, lib_events,
-- lib_outcome.
--   ccs:job:<id>     hash  score, queue, state, expire (ms)
local function expire_waiting(id, now_ms, ttl)
  local key = 'ccs:job:' .. id
  local job = redis.call('HMGET', key, 'kind', 'attempt', 'state')
  if job[1] == 'job' then
    local message = 'the deadline passed while the job waited'
    end_job(id, 'expired', tonumber(job[2]) or 0, now_ms,
      bare_outcome('expired', job[2] or 0, 'DEADLINE_EXCEEDED', message, false),
      error_data('DEADLINE_EXCEEDED', message, 'waiting'), ttl, celery_failure(id, 'REVOKED', 'TaskRevokedError', 'expired'))
  else
    drop_task(id, ttl)
  end
end

-- Move ids whose delay is over among the waiting; at most `limit`.
local function promote_due(now_ms, limit, ticket)
  local due = redis.call('ZRANGEBYSCORE', 'ccs:delayed', '-inf', whole(now_ms), 'LIMIT', 0, limit)
  for _, id in ipairs(due) do
    redis.call('ZREM', 'ccs:delayed', id)
    local job = redis.call('HMGET', 'ccs:job:' .. id, 'queue', 'score')
    if job[1] then
      redis.call('HSET', 'ccs:job:' .. id, 'state', 'waiting')
      enqueue(id, job[1], job[2], ticket)
    end
  end
  return #due
end
