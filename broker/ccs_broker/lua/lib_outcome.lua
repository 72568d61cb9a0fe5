-- Shared: end a job once and for all. Needs lib_events.
--   ccs:job:<id>           hash    state, outcome, end; msg and job are dropped with the outcome
--   ccs:log:<id>           stream  gets the terminal event, then a TTL
--   ccs:expiry, ccs:late   zset    the id leaves them
--   ccs:quarantined        zset    id by time ms, for those quarantined: their payload and media stay as well
--   ccs:refs:<sha>         set     the id leaves it; without users left the blob gets a short TTL
--   celery-task-meta-<id>  string  Celery's result, where the job came through Celery
--
-- outcome: JSON of the outcome without timings. event: JSON data of the terminal event, may be empty.
-- ttl = {job seconds, log seconds, blob grace seconds, ticket}. celery: JSON of Celery's result, may be empty. held:
-- true if a worker holds the job, which does what follows it in Celery.

-- What the end of a step means for its pipeline; see lib_pipeline.
local step_ended

local function drop_blobs(id, blobs, grace_s)
  for sha in string.gmatch(blobs or '', '%S+') do
    local refs = 'ccs:refs:' .. sha
    redis.call('SREM', refs, id)
    if redis.call('SCARD', refs) == 0 then redis.call('EXPIRE', 'ccs:blob:' .. sha, grace_s) end
  end
end

local function end_job(id, state, attempt, now_ms, outcome, event, ttl, celery, held)
  local key = 'ccs:job:' .. id
  local old = redis.call('HMGET', key, 'blobs', 'celery', 'pipe', 'msg')
  redis.call('ZREM', 'ccs:expiry', id)
  redis.call('ZREM', 'ccs:late', id)
  if state == 'quarantined' then
    redis.call('HDEL', key, 'msg')
    redis.call('ZADD', 'ccs:quarantined', whole(now_ms), id)
    redis.call('ZREMRANGEBYSCORE', 'ccs:quarantined', '-inf', whole(now_ms - 1000 * tonumber(ttl[1])))
    redis.call('EXPIRE', 'ccs:quarantined', ttl[1])
  else
    redis.call('HDEL', key, 'msg', 'job', 'blobs')
    drop_blobs(id, old[1], ttl[3])
  end
  redis.call('HSET', key, 'state', state, 'outcome', outcome, 'end', whole(now_ms))
  append_event(id, state, attempt, now_ms, '', event, '')
  redis.call('EXPIRE', key, ttl[1])
  redis.call('EXPIRE', 'ccs:log:' .. id, ttl[2])
  if old[2] and celery ~= '' then
    local meta = 'celery-task-meta-' .. id
    redis.call('SET', meta, celery, 'EX', ttl[1])
    redis.call('PUBLISH', meta, celery)
  end
  if old[3] then step_ended(id, old[3], state, now_ms, ttl, not held and old[4]) end
end

-- An outcome that no worker wrote: cancelled or expired while it waited, or lost with its worker.
local function bare_outcome(state, attempts, code, message, retryable)
  local error_json = ''
  if code then
    error_json = ',"error":{"code":' .. cjson.encode(code) .. ',"message":' .. cjson.encode(message)
      .. ',"retryable":' .. tostring(retryable) .. '}'
  end
  return '{"v":1,"state":"' .. state .. '","attempts":' .. attempts .. error_json .. '}'
end

local function error_data(code, message, stage)
  return '{"code":' .. cjson.encode(code) .. ',"message":' .. cjson.encode(message) .. ',"stage":' .. cjson.encode(stage) .. '}'
end

local function celery_failure(id, status, exc_type, message)
  return cjson.encode({status = status, result = {exc_type = exc_type, exc_message = {message},
    exc_module = status == 'REVOKED' and 'celery.exceptions' or 'ccs_broker.errors'},
    task_id = id, traceback = cjson.null, children = cjson.null, date_done = cjson.null})
end

-- A job that no worker holds ends as cancelled.
local function cancel_waiting(id, attempts, now_ms, ttl)
  end_job(id, 'cancelled', attempts, now_ms, bare_outcome('cancelled', attempts), '{"stage":"waiting"}', ttl,
    celery_failure(id, 'REVOKED', 'TaskRevokedError', 'cancelled'))
end

-- A plain task that will not run: Celery's result says so, the rest goes.
local function drop_task(id, ttl)
  local meta = celery_failure(id, 'REVOKED', 'TaskRevokedError', 'revoked')
  redis.call('ZREM', 'ccs:expiry', id)
  redis.call('SET', 'celery-task-meta-' .. id, meta, 'EX', ttl[1])
  redis.call('PUBLISH', 'celery-task-meta-' .. id, meta)
  redis.call('DEL', 'ccs:job:' .. id)
end
