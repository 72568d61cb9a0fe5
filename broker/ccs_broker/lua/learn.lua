-- Learn: add what a worker has seen of a kind of job to what all have seen; the past fades as it does.
--
-- KEYS[1] ccs:stats:<q>:<model>  hash of numbers
-- ARGV[1] factor by which what is there counts   ARGV[2] TTL s   ARGV[3..] two per number: name, what is added
-- Returns name and sum of all that were named, in turn
local merged = {}
for i = 3, #ARGV, 2 do
  local sum = (tonumber(redis.call('HGET', KEYS[1], ARGV[i])) or 0) * tonumber(ARGV[1]) + tonumber(ARGV[i + 1])
  merged[#merged + 1] = ARGV[i]
  merged[#merged + 1] = string.format('%.17g', sum)
end
redis.call('HSET', KEYS[1], unpack(merged))
redis.call('EXPIRE', KEYS[1], ARGV[2])
return merged
