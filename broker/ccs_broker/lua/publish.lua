-- Publish: store a message under its job id, put the id among the waiting (or delayed), push a ticket. An id that was
-- cancelled before it came has a tombstone: it ends here, without a ticket.
-- include: lib_clock lib_events lib_outcome lib_waiting lib_leaving lib_pipeline lib_score
--
-- KEYS[1] ccs:job:<id>   hash; KEYS[2] ccs:log:<id> stream (other keys are derived from the arguments)
-- KEYS[3] ccs:tombstones zset, id by the time until which it counts, ms
-- ARGV[1] id            ARGV[2] queue         ARGV[3] kind: "job" | "task"
-- ARGV[4] msg: Celery message JSON, for "job" without payload
-- ARGV[5] job: payload JSON, empty for "task"
-- ARGV[6] rank          ARGV[7] target us     ARGV[8] delay ms, 0 for none
-- ARGV[9] expire ms: from now until the deadline or the longest lifetime
-- ARGV[10] birth TTL s  ARGV[11] model alias or empty   ARGV[12] modality or empty
-- ARGV[13] blobs: SHA-256s separated by spaces          ARGV[14] celery: "1" if a Celery result is wanted
-- ARGV[15] idempotency key (whole Redis key) or empty   ARGV[16] digest of the body
-- ARGV[17] list to take the raw message from, or empty  ARGV[18] the raw message (intake of foreign messages)
-- ARGV[19] ticket       ARGV[20] job TTL s      ARGV[21] log TTL s    ARGV[22] blob grace s
-- ARGV[23] base of the score: "share" | "clock"         ARGV[24] us added to it
-- ARGV[25] factor       ARGV[26] factor once relegated
-- ARGV[27] what becomes of it when it can't be done in time: "relegate" | "refuse" | "accept"
-- ARGV[28] "1" if the policy relegates  ARGV[29] sizes: prompt characters, new tokens, images, media bytes, with spaces
-- ARGV[30] tenant       ARGV[31] us until its first output, where that is known, or empty   ARGV[32] us in all
-- ARGV[33] most jobs waiting in the queue, which a pipeline's steps may exceed: it was accepted as a whole
-- ARGV[34] pipeline, empty if it isn't a step of one       ARGV[35] the step's name
-- ARGV[36] its policy: "fail" | "skip" | "default"         ARGV[37] "1" if Celery goes on after it
-- ARGV[38] "1" if it needs the text of a step that was skipped: it ends here as well
-- Returns {"ok", id} | {"same", id} | {"conflict", id} | {"nomodel", ""} | {"noblob", sha} | {"gone", ""}
--       | {"full", limit} | {"unreachable", "first" or "end", then the predicted seconds}
local id, queue, kind, model, rank, tenant = ARGV[1], ARGV[2], ARGV[3], ARGV[11], tonumber(ARGV[6]), ARGV[30]
local key = KEYS[1]
local now = now_us()
local now_ms = math.floor(now / 1000)
local pipe, skipped = ARGV[34], ARGV[38] == '1'
local delay, expire_ms, target = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[7])

if ARGV[15] ~= '' then
  local seen = redis.call('GET', ARGV[15])
  if seen then
    local digest, old = string.match(seen, '^(%S+) (%S+)$')
    -- Once the job's record has expired, its key is free again.
    if old and redis.call('EXISTS', 'ccs:job:' .. old) == 1 then
      return {digest == ARGV[16] and 'same' or 'conflict', old}
    end
  end
end
if model ~= '' and ARGV[12] ~= '' then
  local models = 'ccs:models:' .. ARGV[12]
  local served = redis.call('ZSCORE', models, model)
  if not (served and tonumber(served) > now_ms) and redis.call('ZCOUNT', models, whole(now_ms), '+inf') > 0 then
    return {'nomodel', ''}
  end
end
for sha in string.gmatch(ARGV[13], '%S+') do
  if redis.call('EXISTS', 'ccs:blob:' .. sha) == 0 then return {'noblob', sha} end
end

local old = redis.call('HMGET', key, 'state', 'kind', 'cost_us')
local known = old[1] and (old[1] == 'waiting' or old[1] == 'delayed' or old[2] == 'job')
-- Read before anything is written: a script that has written passes the server's memory limit.
local tomb = not old[1] and redis.call('ZSCORE', KEYS[3], id)
local doomed = tomb and tonumber(tomb) > now_ms or pipe ~= '' and (skipped or not is_open(pipe))
local share = redis.call('HMGET', 'ccs:share', 'v', 'day', 'weighed', 'full:' .. queue)
local day = whole(math.floor(now_ms / 86400000))
local weight, tag = 1, now - EPOCH_US
if ARGV[23] == 'share' then
  if share[3] == '1' or share[2] ~= day then weight = weight_of(tenant) end
  tag = math.max(tonumber(share[1]) or 0, tonumber(redis.call('ZSCORE', 'ccs:share:f', rank .. '|' .. tenant)) or 0)
end
local first, cost = tonumber(ARGV[31]), tonumber(ARGV[32])
if not first then first, cost = expected_work(queue, model, ARGV[29]) end
local score = score_of(tag, tonumber(ARGV[24]), tonumber(ARGV[25]), first)
local late = late_after(target, first)

if not (old[1] or doomed or pipe ~= '') then
  -- Counted only where the last submission found the queue to be at its bound.
  local crowd = delay > 0 and redis.call('ZCARD', 'ccs:delayed') or share[4] and redis.call('ZCARD', 'ccs:waiting:' .. queue)
  if crowd and crowd >= tonumber(ARGV[33]) then return {'full', ARGV[33]} end
  if ARGV[27] == 'refuse' then
    local wait = predicted_wait(score - tag, now_ms)
    if wait + first > target then return {'unreachable', string.format('first %.3f', (wait + first) / 1e6)} end
    if wait + cost > 1000 * expire_ms then return {'unreachable', string.format('end %.3f', (wait + cost) / 1e6)} end
  end
end
if ARGV[17] ~= '' and redis.call('LREM', ARGV[17], -1, ARGV[18]) == 0 then return {'gone', ''} end
if known then return {'same', id} end

local ttl = {ARGV[20], ARGV[21], ARGV[22], ARGV[19]}
if doomed and kind ~= 'job' then
  -- It leaves no record by which a repeated publish would be known, so its tombstone stays.
  drop_task(id, ttl)
  return {'ok', id}
end
-- A Celery task that is retried while its old delivery runs.
if old[1] == 'running' then stops_running(old[3]) end

local may_relegate = ARGV[28] == '1' and kind == 'job'
local job = {queue = queue, model = model, score = score, rank = rank, tag = tag, cost = cost, tenant = tenant,
  weight = share[3] == '1' and weight or nil, sub = whole(now_ms), low = score_of(tag, 0, tonumber(ARGV[26]), first), relegated = may_relegate and late <= 0}
local expire = whole(now_ms + expire_ms)
local fields = {'kind', kind, 'queue', queue, 'score', whole(score), 'state', delay > 0 and 'delayed' or 'waiting',
  'sub', job.sub, 'expire', expire, 'rank', ARGV[6], 'tag', whole(tag), 'first_us', whole(first), 'cost_us', whole(cost),
  'sizes', ARGV[29], 'tenant', tenant}
local function also(name, value)
  fields[#fields + 1], fields[#fields + 2] = name, value
end
if ARGV[4] ~= '' then also('msg', ARGV[4]) end
if ARGV[5] ~= '' then also('job', ARGV[5]) end
if model ~= '' then also('model', model) end
if ARGV[13] ~= '' then also('blobs', ARGV[13]) end
if ARGV[14] ~= '' then also('celery', ARGV[14]) end
if may_relegate then also('low', whole(job.low)) end
if job.relegated then also('relegated', '1') end
if kind == 'job' then also('seq', '1') end
if pipe ~= '' then
  also('pipe', pipe)
  also('step', ARGV[35])
  also('policy', ARGV[36])
  if ARGV[37] == '1' then also('linked', '1') end
  if skipped then also('skipped', '1') end
  if redis.call('EXISTS', 'ccs:job:' .. pipe) == 1 then redis.call('HINCRBY', 'ccs:job:' .. pipe, 'open', 1) end
end
redis.call('HSET', key, unpack(fields))
redis.call('EXPIRE', key, ARGV[10])
redis.call('ZADD', 'ccs:expiry', expire, id)
if ARGV[13] ~= '' then
  for sha in string.gmatch(ARGV[13], '%S+') do
    redis.call('SADD', 'ccs:refs:' .. sha, id)
    redis.call('EXPIRE', 'ccs:refs:' .. sha, ARGV[10])
    redis.call('EXPIRE', 'ccs:blob:' .. sha, ARGV[10])
  end
end
if ARGV[15] ~= '' then redis.call('SET', ARGV[15], ARGV[16] .. ' ' .. id, 'EX', ARGV[10]) end
if kind == 'job' then
  -- The first event; nobody can have subscribed to an id that nobody knows yet, so its bell is silent.
  if job.relegated then
    redis.call('XADD', KEYS[2], '1-0', 'k', 'queued', 'n', '0', 't', job.sub, 'd', '{"relegated":true,"reason":"late"}')
  else
    redis.call('XADD', KEYS[2], '1-0', 'k', 'queued', 'n', '0', 't', job.sub)
  end
  redis.call('EXPIRE', KEYS[2], ARGV[10])
  if pipe ~= '' then tell_pipeline(pipe, ARGV[35], 'queued', 0, now_ms, '', '') end
end
if doomed then
  redis.call('ZREM', KEYS[3], id)
  cancel_waiting(id, 0, now_ms, ttl)
  return {'ok', id}
end

-- Behind its tenant's other jobs of the class, if it waits at all: one that was cancelled has used nothing.
if ARGV[23] == 'share' then
  local after = whole(math.floor(tag + cost / weight + 0.5))
  if redis.call('ZADD', 'ccs:share:f', after, rank .. '|' .. tenant) == 1 then
    redis.call('EXPIRE', 'ccs:share:f', ARGV[10])
  end
end
if may_relegate and not job.relegated then redis.call('ZADD', 'ccs:late', whole(now_ms + delay + late), id) end
if delay > 0 then
  redis.call('ZADD', 'ccs:delayed', whole(now_ms + delay), id)
else
  local crowd = enqueue(id, job, ARGV[19])
  if crowd >= tonumber(ARGV[33]) then
    redis.call('HSET', 'ccs:share', 'full:' .. queue, '1')
  elseif share[4] then
    redis.call('HDEL', 'ccs:share', 'full:' .. queue)
  end
end
-- These live on while jobs come; once a day is enough, as their TTL is longer than a job's life by more than that.
if share[2] ~= day then
  redis.call('HSET', 'ccs:share', 'day', day, 'weighed', redis.call('EXISTS', 'ccs:weights'))
  redis.call('HSETNX', 'ccs:load', 'run', '0')
  for _, name in ipairs({'ccs:share', 'ccs:share:n', 'ccs:share:f', 'ccs:load'}) do
    redis.call('EXPIRE', name, tonumber(ARGV[10]) + 86400)
  end
end
return {'ok', id}
