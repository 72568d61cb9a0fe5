-- Begin: the record of a pipeline, before its first step is published. Its media are held until it ends, and its steps'
-- jobs lie in it until each is published.
-- include: lib_clock lib_events
--
-- KEYS[1] ccs:job:<id>   hash; KEYS[2] ccs:log:<id> stream
-- ARGV[1] id            ARGV[2] expire ms: from now until the deadline or the longest lifetime
-- ARGV[3] birth TTL s   ARGV[4] rank: place of its class     ARGV[5] tenant
-- ARGV[6] blobs: SHA-256s separated by spaces                ARGV[7] step whose text is the pipeline's
-- ARGV[8] names of all steps, separated by spaces
-- ARGV[9] idempotency key (whole Redis key) or empty         ARGV[10] digest of the body
-- ARGV[11..] names and values of further fields
-- Returns {"ok", id} | {"same", id} | {"conflict", id} | {"noblob", sha}
local id, key = ARGV[1], KEYS[1]
if ARGV[9] ~= '' then
  local digest, old = string.match(redis.call('GET', ARGV[9]) or '', '^(%S+) (%S+)$')
  if old and redis.call('EXISTS', 'ccs:job:' .. old) == 1 then
    return {digest == ARGV[10] and 'same' or 'conflict', old}
  end
end
for sha in string.gmatch(ARGV[6], '%S+') do
  if redis.call('EXISTS', 'ccs:blob:' .. sha) == 0 then return {'noblob', sha} end
end
if redis.call('EXISTS', key) == 1 then return {'same', id} end
local now_ms = math.floor(now_us() / 1000)
local _, count = string.gsub(ARGV[8], '%S+', '')
local expire = whole(now_ms + tonumber(ARGV[2]))
redis.call('HSET', key, 'kind', 'pipeline', 'state', 'waiting', 'sub', whole(now_ms), 'expire', expire, 'rank', ARGV[4],
  'tenant', ARGV[5], 'output', ARGV[7], 'steps', ARGV[8], 'left', count, 'open', '0', 'seq', '0')
if ARGV[6] ~= '' then redis.call('HSET', key, 'blobs', ARGV[6]) end
if ARGV[9] ~= '' then redis.call('SET', ARGV[9], ARGV[10] .. ' ' .. id, 'EX', ARGV[3]) end
for i = 11, #ARGV, 2 do redis.call('HSET', key, ARGV[i], ARGV[i + 1]) end
redis.call('EXPIRE', key, ARGV[3])
redis.call('ZADD', 'ccs:expiry', expire, id)
for sha in string.gmatch(ARGV[6], '%S+') do
  redis.call('SADD', 'ccs:refs:' .. sha, id)
  redis.call('EXPIRE', 'ccs:refs:' .. sha, ARGV[3])
  redis.call('EXPIRE', 'ccs:blob:' .. sha, ARGV[3])
end
write_event(id, 'queued', 0, now_ms, '', '', '', '')
redis.call('EXPIRE', KEYS[2], ARGV[3])
return {'ok', id}
