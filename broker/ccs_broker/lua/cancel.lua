-- Cancel: a waiting or delayed job ends at once; a running one is flagged and ends at its next step; one that isn't
-- there yet leaves a tombstone, at which publishing it ends it.
-- include: lib_clock lib_events lib_outcome lib_waiting lib_leaving lib_pipeline
--
-- KEYS[1] ccs:job:<id>   KEYS[2] ccs:tombstones: zset, id by the time until which it counts, ms
-- ARGV[1] id   ARGV[2] ticket   ARGV[3] job TTL s   ARGV[4] log TTL s   ARGV[5] blob grace s
-- ARGV[6] how far it reaches: "any" | "unstarted": not to one that runs | "waiting": nor to one that isn't there
-- ARGV[7] tombstone TTL s   ARGV[8] most tombstones
-- A pipeline ends once those of its steps that run have stopped; none begins any more.
-- A plain task that waits is dropped, and Celery told that it was revoked; one that runs is not ours to stop.
-- Returns "missing" | "cancelled" | "cancelling" | "running": left alone | the state in which it had ended before
local job = redis.call('HMGET', KEYS[1], 'state', 'queue', 'attempt', 'kind')
local id, reach = ARGV[1], ARGV[6]
local ttl = {ARGV[3], ARGV[4], ARGV[5], ARGV[2]}
if not job[1] then
  if reach == 'waiting' then return 'missing' end
  local now_ms = math.floor(now_us() / 1000)
  -- A removal comes first, so a server at its memory limit still remembers; their number is bounded.
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', whole(now_ms))
  redis.call('ZADD', KEYS[2], whole(now_ms + 1000 * tonumber(ARGV[7])), id)
  redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -1 - tonumber(ARGV[8]))
  redis.call('EXPIRE', KEYS[2], ARGV[7])
  return 'missing'
end
if job[4] == 'pipeline' then
  if ENDS[job[1]] then return job[1] end
  if reach ~= 'any' then return 'running' end
  if is_open(id) then stop_pipeline(id, 'cancelled', nil, math.floor(now_us() / 1000), ttl) end
  return redis.call('HGET', KEYS[1], 'state') == 'cancelled' and 'cancelled' or 'cancelling'
end
if job[1] == 'running' then
  if job[4] ~= 'job' or reach ~= 'any' then return 'running' end
  redis.call('HSET', KEYS[1], 'cancel', '1')
  -- The flag is the fact; this only tells the worker sooner than its next append or renewal.
  redis.call('PUBLISH', 'ccs:control', id .. '|' .. job[3])
  return 'cancelling'
end
if job[1] ~= 'waiting' and job[1] ~= 'delayed' then return job[1] end
redis.call('ZREM', 'ccs:delayed', id)
dequeue(id, waiting_job(id), ARGV[2])
if job[4] == 'job' then
  cancel_waiting(id, tonumber(job[3]) or 0, math.floor(now_us() / 1000), ttl)
else
  drop_task(id, ttl)
end
return 'cancelled'
