#!lua flags=allow-oom
-- Renew: prolong the leases of the running entries a worker names, and tell it what it must know about each.
-- include: lib_clock
--
-- KEYS[1] ccs:running
-- ARGV[1] lease ms   ARGV[2..] running entries "id|attempt"
-- Returns one of "ok" | "lost" | "cancelling" | "expired" per entry, in order
local now_ms = math.floor(now_us() / 1000)
local states = {}
for i = 2, #ARGV do
  local entry = ARGV[i]
  local id = string.match(entry, '^(.*)|%d+$')
  if not id or not redis.call('ZSCORE', KEYS[1], entry) then
    states[#states + 1] = 'lost'
  else
    redis.call('ZADD', KEYS[1], 'XX', whole(now_ms + tonumber(ARGV[1])), entry)
    local job = redis.call('HMGET', 'ccs:job:' .. id, 'cancel', 'expire')
    if job[1] then
      states[#states + 1] = 'cancelling'
    elseif job[2] and tonumber(job[2]) <= now_ms then
      states[#states + 1] = 'expired'
    else
      states[#states + 1] = 'ok'
    end
  end
end
return states
