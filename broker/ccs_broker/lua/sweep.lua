#!lua flags=allow-oom
-- Sweep: what time brings about. Any worker may run it, any number at once; it looks at a bounded number of ids.
-- include: lib_clock lib_events lib_outcome lib_waiting lib_leaving lib_pipeline lib_queue
--
-- KEYS[1] ccs:running   KEYS[2] ccs:expiry   KEYS[3] ccs:swept   KEYS[4] ccs:missing
-- ARGV[1] ids per kind   ARGV[2] ticket   ARGV[3] job TTL s   ARGV[4] log TTL s   ARGV[5] blob grace s
-- ARGV[6] losses after which a job is quarantined   ARGV[7] ms within which the next sweep is expected
-- ARGV[8] lease ms   ARGV[9] ms for which tickets must be missing   ARGV[10..] queues whose tickets are counted
-- 0. a sweep later than expected: nobody reached the server, so nobody could renew either; every lease is prolonged by
--    the time since the last sweep, to what was left of it then, but at most three times in a row without a renewal in
--    between, lest slow sweeps keep a dead worker's job for ever
-- 1. leases that ran out: their jobs wait again, at their old place, to be continued by the next attempt; one that
--    lost its worker too often is quarantined
-- 2. delays that are over  3. deadlines and lifetimes of waiting jobs
-- 4. tickets lost in a crash: between scripts there is exactly one per waiting job, or fewer while some are between
--    their pop and their claim, so only as many are lost as were missing at every sweep for a while
-- 5. what is counted of waiting and running jobs: without any, it begins anew
-- Returns {requeued, lost, promoted, expired, tickets}
local limit, ticket = tonumber(ARGV[1]), ARGV[2]
local ttl = {ARGV[3], ARGV[4], ARGV[5], ticket}
local now_ms = math.floor(now_us() / 1000)
local requeued, lost, expired, tickets = 0, 0, 0, 0

local expected = redis.call('GET', KEYS[3])
redis.call('SET', KEYS[3], whole(now_ms + tonumber(ARGV[7])), 'EX', 86400)
if not expected or tonumber(expected) < now_ms then
  local full = now_ms + tonumber(ARGV[8])
  -- Where nobody has ever swept, nobody knows: then they begin anew.
  local away = expected and now_ms - (tonumber(expected) - tonumber(ARGV[7])) or math.huge
  local entries = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', whole(full), 'WITHSCORES', 'LIMIT', 0, 10 * limit)
  for i = 1, #entries, 2 do
    local key = 'ccs:job:' .. string.match(entries[i], '^(.*)|%d+$')
    local given, times = string.match(redis.call('HGET', key, 'grace') or '', '^(%d+) (%d+)$')
    times = given == whole(tonumber(entries[i + 1])) and tonumber(times) or 0
    if times < 3 and redis.call('EXISTS', key) == 1 then
      local anew = whole(math.min(full, tonumber(entries[i + 1]) + away))
      redis.call('ZADD', KEYS[1], anew, entries[i])
      redis.call('HSET', key, 'grace', anew .. ' ' .. times + 1)
    end
  end
end

for _, entry in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', whole(now_ms), 'LIMIT', 0, limit)) do
  redis.call('ZREM', KEYS[1], entry)
  local id, attempt = string.match(entry, '^(.*)|(%d+)$')
  local key = 'ccs:job:' .. id
  local job = redis.call('HMGET', key, 'state', 'attempt', 'cost_us', 'kind', 'links')
  if job[1] == 'running' and job[2] == attempt then
    local losses = redis.call('HINCRBY', key, 'losses', 1)
    stops_running(job[3])
    if job[4] == 'job' and losses >= tonumber(ARGV[6]) then
      local message = 'the worker was lost ' .. losses .. ' times while the job ran'
      end_job(id, 'quarantined', attempt, now_ms, bare_outcome('quarantined', attempt, 'WORKER_LOST', message, false),
        error_data('WORKER_LOST', message, 'running'), ttl, celery_failure(id, 'FAILURE', 'WorkerLostError', message))
      lost = lost + 1
    else
      redis.call('HSET', key, 'state', 'waiting')
      enqueue(id, waiting_job(id), ticket)
      requeued = requeued + 1
    end
  elseif job[5] and job[2] == attempt then
    -- It has its outcome; what Celery had to do after it is left. Its state stays.
    enqueue(id, waiting_job(id), ticket)
    requeued = requeued + 1
  end
end

local promoted = promote_due(now_ms, limit, ticket)
relegate_late(now_ms, limit)

for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', whole(now_ms), 'LIMIT', 0, limit)) do
  local job = redis.call('HMGET', 'ccs:job:' .. id, 'state', 'kind')
  if not job[1] then
    redis.call('ZREM', KEYS[2], id)
  elseif job[2] == 'pipeline' and is_open(id) then
    stop_pipeline(id, 'expired', nil, now_ms, ttl)
    -- What runs of it stops soon.
    if redis.call('ZSCORE', KEYS[2], id) then redis.call('ZADD', KEYS[2], whole(now_ms + 60000), id) end
    expired = expired + 1
  elseif job[2] ~= 'pipeline' and (job[1] == 'waiting' or job[1] == 'delayed') then
    redis.call('ZREM', 'ccs:delayed', id)
    dequeue(id, waiting_job(id), ticket)
    expire_waiting(id, now_ms, ttl)
    expired = expired + 1
  else
    -- Running: its worker sees the deadline at the next step. Look again later, so that it can't crowd the head.
    redis.call('ZADD', KEYS[2], whole(now_ms + 60000), id)
  end
end

local waiting = 0
for q = 10, #ARGV do
  local in_queue = redis.call('ZCARD', 'ccs:waiting:' .. ARGV[q])
  waiting = waiting + in_queue
  local missing = in_queue - redis.call('LLEN', ARGV[q] .. ':1')
  local before = redis.call('HGET', KEYS[4], ARGV[q])
  if missing <= 0 then
    if before then redis.call('HDEL', KEYS[4], ARGV[q]) end
    if missing < 0 then redis.call('LREM', ARGV[q] .. ':1', -missing, ticket) end
  else
    local since, least = string.match(before or '', '^(%d+) (%d+)$')
    since, least = tonumber(since or now_ms), math.min(missing, tonumber(least or missing))
    if now_ms - since < tonumber(ARGV[9]) then
      redis.call('HSET', KEYS[4], ARGV[q], whole(since) .. ' ' .. whole(least))
      redis.call('EXPIRE', KEYS[4], 86400)
    else
      redis.call('HDEL', KEYS[4], ARGV[q])
      for _ = 1, math.min(least, limit) do
        redis.call('LPUSH', ARGV[q] .. ':1', ticket)
        tickets = tickets + 1
      end
    end
  end
end

redis.call('ZREMRANGEBYSCORE', 'ccs:share:f', '-inf', redis.call('HGET', 'ccs:share', 'v') or '0')
if waiting == 0 then forget_counts() end
return {requeued, lost, promoted, expired, tickets}
