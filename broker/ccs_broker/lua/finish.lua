-- Finish: outcome, terminal event, Celery's result and the end of the lease in one compare-and-set.
-- include: lib_clock lib_events lib_outcome lib_waiting lib_leaving lib_pipeline
--
-- KEYS[1] ccs:job:<id>   KEYS[2] ccs:running
-- ARGV[1] id   ARGV[2] attempt   ARGV[3] state   ARGV[4] outcome JSON without timings
-- ARGV[5] data JSON of the terminal event, may be empty   ARGV[6] Celery result JSON, may be empty
-- ARGV[7] job TTL s   ARGV[8] log TTL s   ARGV[9] blob grace s
-- ARGV[10] "1" if Celery has something to do after it (a chain, a chord, a link): the lease then goes on until the
--          ack, so that what follows is done by another worker should this one die in between
-- ARGV[11] device time the job took, us, or empty   ARGV[12] ticket
-- Returns 1 (also when this attempt had finished the job before and only the reply was lost), or 0 if the attempt no
-- longer holds the job
if ARGV[10] ~= '1' then redis.call('ZREM', KEYS[2], ARGV[1] .. '|' .. ARGV[2]) end
local job = redis.call('HMGET', KEYS[1], 'state', 'attempt', 'finished_by', 'msg', 'cost_us', 'rank', 'tenant')
if job[3] == ARGV[2] then return 1 end
if job[1] ~= 'running' or job[2] ~= ARGV[2] then return 0 end
end_job(ARGV[1], ARGV[3], ARGV[2], math.floor(now_us() / 1000), ARGV[4], ARGV[5],
  {ARGV[7], ARGV[8], ARGV[9], ARGV[12]}, ARGV[6], true)
redis.call('HSET', KEYS[1], 'finished_by', ARGV[2])
stops_running(job[5])
local account = (job[6] or '') .. '|' .. (job[7] or '')
local after = ARGV[11] ~= '' and redis.call('ZSCORE', 'ccs:share:f', account)
if after then
  -- Its tenant pays for what it took, not for what was expected.
  local more = (tonumber(ARGV[11]) - (tonumber(job[5]) or 0)) / weight_of(job[7])
  redis.call('ZADD', 'ccs:share:f', whole(math.floor(tonumber(after) + more + 0.5)), account)
end
if ARGV[10] == '1' and job[4] then redis.call('HSET', KEYS[1], 'msg', job[4], 'links', '1') end
return 1
