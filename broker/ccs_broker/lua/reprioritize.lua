-- Reprioritize: give a waiting or delayed job another class or deadline. It keeps its tenant's turn (the base of its
-- score); its target counts from now, so a relegated job that can meet it is relegated no longer.
-- include: lib_clock lib_events lib_outcome lib_waiting lib_leaving lib_score
--
-- KEYS[1] ccs:job:<id>   KEYS[2] ccs:expiry   KEYS[3] ccs:late
-- ARGV[1] id   ARGV[2] ticket   ARGV[3] rank   ARGV[4] target us   ARGV[5] us added to the base of the score
-- ARGV[6] factor   ARGV[7] factor once relegated   ARGV[8] "1" if it may be relegated
-- ARGV[9] ms from now until it expires, empty to leave that as it is
-- Returns "ok" | "missing" | the state it is in, which is neither waiting nor delayed
local id, key = ARGV[1], KEYS[1]
local old = redis.call('HMGET', key, 'state', 'first_us', 'kind')
if not old[1] or old[3] == 'task' then return 'missing' end
if old[3] == 'pipeline' then return 'running' end
if old[1] ~= 'waiting' and old[1] ~= 'delayed' then return old[1] end
local now_ms = math.floor(now_us() / 1000)
local job, first = waiting_job(id), tonumber(old[2]) or FIRST_US
local waits = take(id, job)
job.rank = tonumber(ARGV[3])
job.score = score_of(job.tag, tonumber(ARGV[5]), tonumber(ARGV[6]), first)
job.low = score_of(job.tag, 0, tonumber(ARGV[7]), first)
local late = late_after(tonumber(ARGV[4]), first)
local was, may_relegate = job.relegated, ARGV[8] == '1'
job.relegated = may_relegate and late <= 0
redis.call('HSET', key, 'rank', ARGV[3], 'score', whole(job.score), 'relegated', job.relegated and '1' or '0')
redis.call('HDEL', key, 'passed', 'holder', 'held')
if may_relegate then redis.call('HSET', key, 'low', whole(job.low)) else redis.call('HDEL', key, 'low') end
if may_relegate and not job.relegated then
  redis.call('ZADD', KEYS[3], whole(now_ms + late), id)
else
  redis.call('ZREM', KEYS[3], id)
end
if ARGV[9] ~= '' then
  local expire = whole(now_ms + tonumber(ARGV[9]))
  redis.call('HSET', key, 'expire', expire)
  redis.call('ZADD', KEYS[2], expire, id)
end
if job.relegated and not was then
  append_event(id, 'queued', redis.call('HGET', key, 'attempt') or 0, now_ms, '', '{"relegated":true,"reason":"late"}', '')
elseif was and not job.relegated then
  append_event(id, 'queued', redis.call('HGET', key, 'attempt') or 0, now_ms, '', '{"relegated":false}', '')
end
if waits then
  put(id, job)
  nudge(job, ARGV[2])
end
return 'ok'
