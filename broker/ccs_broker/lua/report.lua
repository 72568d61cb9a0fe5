-- Report: a worker lives; what it is and serves can be read until the TTL passes. An empty report takes it off.
-- include: lib_clock
--
-- KEYS[1] ccs:workers
-- ARGV[1] worker name   ARGV[2] report JSON, empty when the worker goes   ARGV[3] TTL ms
-- ARGV[4..] two per model served: modality, alias
local now_ms = math.floor(now_us() / 1000)
if ARGV[2] == '' then
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('DEL', 'ccs:worker:' .. ARGV[1])
  return 1
end
local ttl = tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', whole(now_ms))
redis.call('ZADD', KEYS[1], whole(now_ms + ttl), ARGV[1])
redis.call('PEXPIRE', KEYS[1], ttl)
redis.call('SET', 'ccs:worker:' .. ARGV[1], ARGV[2], 'PX', ttl)
for i = 4, #ARGV, 2 do
  local models = 'ccs:models:' .. ARGV[i]
  redis.call('ZREMRANGEBYSCORE', models, '-inf', whole(now_ms))
  redis.call('ZADD', models, whole(now_ms + ttl), ARGV[i + 1])
  redis.call('PEXPIRE', models, ttl)
end
return 1
