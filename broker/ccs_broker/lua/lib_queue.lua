-- Shared: what time brings about for waiting jobs: an end, a start, a lower place. Needs lib_clock, lib_events,
-- lib_outcome, lib_waiting, lib_leaving.
--   ccs:delayed  zset  id by due time, ms
--   ccs:late     zset  id by the time, ms, from which its first output can't come in time any more
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
    local job = waiting_job(id)
    if job then
      redis.call('HSET', 'ccs:job:' .. id, 'state', 'waiting')
      enqueue(id, job, ticket)
    end
  end
  return #due
end

-- Relegate jobs whose first output can't come in time any more; at most `limit`. One that runs is told; only should it
-- have to wait again is its place another.
local function relegate_late(now_ms, limit)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', 'ccs:late', '-inf', whole(now_ms), 'LIMIT', 0, limit)) do
    redis.call('ZREM', 'ccs:late', id)
    local key = 'ccs:job:' .. id
    local job = redis.call('HMGET', key, 'state', 'first', 'relegated', 'attempt')
    local state = job[1]
    if not job[2] and job[3] ~= '1' and (state == 'waiting' or state == 'delayed' or state == 'running') then
      local waiting = state == 'waiting' and waiting_job(id)
      local moved = waiting and take(id, waiting)
      redis.call('HSET', key, 'relegated', '1')
      if moved then
        waiting.relegated = true
        put(id, waiting)
      end
      local seq = append_event(id, 'queued', job[4] or 0, now_ms, '', '{"relegated":true,"reason":"late"}', '')
      -- The worker counts the events that it writes itself; see append.lua.
      if state == 'running' then redis.call('HSET', key, 'aside', seq) end
    end
  end
end
