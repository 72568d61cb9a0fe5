-- Weigh: set the weight of a tenant; what it has waiting counts by it from now on.
-- include: lib_clock lib_waiting
--
-- KEYS[1] ccs:weights   KEYS[2] ccs:share:n   KEYS[3] ccs:share
-- ARGV[1] tenant   ARGV[2] weight; 1, the usual one, takes no room   ARGV[3] most tenants with a weight of their own
-- Returns "ok" | "full"
local old = weight_of(ARGV[1])
if tonumber(ARGV[2]) == 1 then
  redis.call('HDEL', KEYS[1], ARGV[1])
elseif redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[3]) then
  return 'full'
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
end
redis.call('HSET', KEYS[3], 'weighed', redis.call('EXISTS', KEYS[1]))
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then
  redis.call('HINCRBYFLOAT', KEYS[3], 'w', string.format('%.17g', tonumber(ARGV[2]) - old))
end
return 'ok'
