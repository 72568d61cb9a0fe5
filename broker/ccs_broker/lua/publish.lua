-- Publish: store a message under its job id, put the id among the waiting (or delayed), push a ticket.
-- include: lib_clock lib_tickets
--
-- KEYS[1] ccs:job:<id>   hash; KEYS[2] ccs:log:<id> stream (other keys are derived from the arguments)
-- ARGV[1] id            ARGV[2] queue         ARGV[3] kind: "job" | "task"
-- ARGV[4] msg: Celery message JSON, for "job" without payload
-- ARGV[5] job: payload JSON, empty for "task"
-- ARGV[6] rank          ARGV[7] slack us      ARGV[8] delay ms, 0 for none
-- ARGV[9] expire ms: from now until the deadline or the longest lifetime
-- ARGV[10] birth TTL s  ARGV[11] model alias or empty   ARGV[12] modality or empty
-- ARGV[13] blobs: SHA-256s separated by spaces          ARGV[14] celery: "1" if a Celery result is wanted
-- ARGV[15] idempotency key (whole Redis key) or empty   ARGV[16] digest of the body
-- ARGV[17] list to take the raw message from, or empty  ARGV[18] the raw message (intake of foreign messages)
-- ARGV[19] ticket
-- Returns {"ok", id} | {"same", id} | {"conflict", id} | {"nomodel", ""} | {"noblob", sha} | {"gone", ""}
local id, queue, kind = ARGV[1], ARGV[2], ARGV[3]
local key = KEYS[1]
local now = now_us()
local now_ms = math.floor(now / 1000)

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
if ARGV[11] ~= '' and ARGV[12] ~= '' then
  local models = 'ccs:models:' .. ARGV[12]
  local served = redis.call('ZSCORE', models, ARGV[11])
  if not (served and tonumber(served) > now_ms) and redis.call('ZCOUNT', models, whole(now_ms), '+inf') > 0 then
    return {'nomodel', ''}
  end
end
for sha in string.gmatch(ARGV[13], '%S+') do
  if redis.call('EXISTS', 'ccs:blob:' .. sha) == 0 then return {'noblob', sha} end
end
if ARGV[17] ~= '' and redis.call('LREM', ARGV[17], -1, ARGV[18]) == 0 then return {'gone', ''} end

local old = redis.call('HMGET', key, 'state', 'kind')
if old[1] and (old[1] == 'waiting' or old[1] == 'delayed' or old[2] == 'job') then return {'same', id} end

local score = whole(tonumber(ARGV[6]) * BAND_US + (now - EPOCH_US) + tonumber(ARGV[7]))
local delay = tonumber(ARGV[8])
local at = whole(now_ms)
local expire = whole(now_ms + tonumber(ARGV[9]))
local fields = {'kind', kind, 'queue', queue, 'score', score, 'state', delay > 0 and 'delayed' or 'waiting', 'sub', at,
  'expire', expire}
local optional = {msg = ARGV[4], job = ARGV[5], model = ARGV[11], blobs = ARGV[13], celery = ARGV[14]}
for name, value in pairs(optional) do
  if value ~= '' then fields[#fields + 1] = name; fields[#fields + 1] = value end
end
if kind == 'job' then fields[#fields + 1] = 'seq'; fields[#fields + 1] = '1' end
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
  redis.call('XADD', KEYS[2], '1-0', 'k', 'queued', 'n', '0', 't', at)
  redis.call('EXPIRE', KEYS[2], ARGV[10])
end
if delay > 0 then
  redis.call('ZADD', 'ccs:delayed', whole(now_ms + delay), id)
else
  enqueue(id, queue, score, ARGV[19])
end
return {'ok', id}
