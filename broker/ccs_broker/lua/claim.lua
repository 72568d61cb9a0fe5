#!lua flags=allow-oom
-- Claim: turn a popped ticket into the most urgent job this worker can take, over all queues it listens to.
-- include: lib_clock lib_events lib_outcome lib_waiting lib_leaving lib_pipeline lib_queue lib_choice
--
-- KEYS[1] ccs:running
-- ARGV[1] queue whose ticket was popped   ARGV[2] worker name      ARGV[3] lease ms
-- ARGV[4] most jobs looked at, a pool     ARGV[5] ticket           ARGV[6] job TTL s
-- ARGV[7] log TTL s                       ARGV[8] blob grace s
-- ARGV[9] "1" if a nudge was popped instead: the ticket is still on its list
-- ARGV[10] the floor's share of device time, 0 for none
-- ARGV[11] shares of memory by rank, and of relegated jobs, with spaces
-- ARGV[12] ms after which a job is kept memory for
-- ARGV[13] bytes of memory free in each pool, with spaces, empty if that is no bound   ARGV[14] bytes in all of each
-- ARGV[15] model aliases served, each between spaces (" a b "), or empty for any
-- ARGV[16..] queues with room, the popped one included or not, two each: name; memory that its jobs need, in bytes, as
--            ";model=", the number of a pool and five coefficients for each model and for jobs that name none, or
--            ";model=-" where its jobs can't be taken now; or empty
-- Returns {id, attempt, queue, msg, job, seq, sub ms, expire ms, links, score, first us, cost us, rank, relegated,
--          turn, preempted}
--         links: "1" if the job has its outcome (then `job` is that) and only what follows it in Celery is to be done
--         turn: "floor" if it was taken in the turn of batch and relegated jobs
--       | {"none", ...}: the ticket is spent
--       | {"noroom", ...}: jobs wait, none that fits; the ticket has been pushed back
--         with id, rank, score and need in bytes of the best job that only lacks memory, if there is one
local popped, ticket = ARGV[1], ARGV[5]
local ttl = {ARGV[6], ARGV[7], ARGV[8]}
local now = now_us()
local now_ms = math.floor(now / 1000)
promote_due(now_ms, 16, ticket)
relegate_late(now_ms, 16)
local holds_ticket = ARGV[9] ~= '1' or redis.call('LREM', popped .. ':1', -1, ticket) > 0

local share = redis.call('HMGET', 'ccs:share', 'v', 'w', 'floor', 'due')
local floor, credit = tonumber(ARGV[10]), tonumber(share[3]) or 0
local aged = false
if floor > 0 then
  local sets = {}
  for at = 16, #ARGV, 2 do sets[#sets + 1] = 'ccs:aged:' .. ARGV[at] end
  aged = redis.call('EXISTS', unpack(sets)) > 0
end
local pools = pools_of(ARGV[13], ARGV[14], ARGV[11])
local bounds = {now_ms = now_ms, ttl = ttl, ticket = ticket, worker = ARGV[2], reserve_ms = tonumber(ARGV[12]),
  models = ARGV[15], queues_at = 16}

local best, blocked, held = best_of(tonumber(ARGV[4]), pools, bounds)
local turn, due = '', tonumber(share[4]) or 0
if aged and credit > 0 and credit >= due then
  -- It is its turn once the credit pays for it; one that costs more than can be saved up leaves a debt.
  local oldest = oldest_of(pools, held, bounds)
  due = oldest and math.min(oldest.cost, FLOOR_CREDIT_US) or 0
  if oldest and credit >= due then best, turn, due = oldest, 'floor', 0 end
end

if not best then
  local reply = {'none'}
  if redis.call('ZCARD', 'ccs:waiting:' .. popped) > redis.call('LLEN', popped .. ':1') then
    if holds_ticket then redis.call('RPUSH', popped .. ':1', ticket) end
    redis.call('SET', 'ccs:muted:' .. popped, '1', 'PX', 2000)
    reply[1] = 'noroom'
  end
  if blocked then
    reply[2], reply[3], reply[4], reply[5] = blocked.id, rank_now(blocked), whole(score_now(blocked)), whole(blocked.need)
  end
  return reply
end

local id, key = best.id, 'ccs:job:' .. best.id
dequeue(id, best, nil)
if best.queue ~= popped then
  -- The popped ticket stands for a job that still waits there: exchange it for one of the queue we took from.
  local exchanged = redis.call('LREM', best.queue .. ':1', -1, ticket) > 0
  if holds_ticket and (exchanged
    or redis.call('ZCARD', 'ccs:waiting:' .. popped) > redis.call('LLEN', popped .. ':1')) then
    redis.call('RPUSH', popped .. ':1', ticket)
  end
end
local attempt = best.attempt + 1
redis.call('ZADD', KEYS[1], whole(now_ms + tonumber(ARGV[3])), id .. '|' .. attempt)
local job = redis.call('HMGET', key, 'kind', 'msg', 'job', 'sub', 'expire', 'first', 'outcome', 'first_us', 'preempted',
  'policy', 'skipped')
local policy = job[11] and 'skip' or job[10] or ''
local score, relegated = whole(score_now(best)), best.relegated and '1' or ''
if best.links then
  redis.call('HSET', key, 'attempt', attempt)
  return {id, attempt, best.queue, job[2] or '', job[7] or '', 0, job[4], job[5], '1', score, 0, 0, best.rank, relegated,
    turn, 0, policy}
end
if best.passed then redis.call('HDEL', key, 'passed', 'holder', 'held') end
local account = {}
if best.started then
  redis.call('HSET', key, 'state', 'running', 'worker', ARGV[2], 'attempt', attempt)
else
  redis.call('HSET', key, 'state', 'running', 'worker', ARGV[2], 'attempt', attempt, 'start', whole(now_ms))
  -- Virtual time passes with the device time that is given out, the slower the more tenants want it.
  local weights = math.max(tonumber(share[2]) or 1, 1e-6)
  account = {'v', whole(math.floor((tonumber(share[1]) or 0) + best.cost / weights + 0.5))}
end
if aged then
  local paid = rank_now(best) >= 3 and -best.cost or floor / (1 - floor) * best.cost
  account[#account + 1] = 'floor'
  account[#account + 1] = whole(math.max(FLOOR_DEBT_US, math.min(FLOOR_CREDIT_US, credit + paid)))
  account[#account + 1] = 'due'
  account[#account + 1] = whole(due)
end
if #account > 0 then redis.call('HSET', 'ccs:share', unpack(account)) end
stops_running(-best.cost)
local seq = 0
if job[1] == 'job' then
  local data = '{"worker":' .. cjson.encode(ARGV[2]) .. ',"score":' .. score .. (turn ~= '' and ',"turn":"floor"}' or '}')
  seq = append_event(id, job[6] and 'resumed' or 'started', attempt, now_ms, '', data, '')
end
return {id, attempt, best.queue, job[2] or '', job[3] or '', seq, job[4], job[5], '', score, job[8] or 0,
  whole(best.cost), best.rank, relegated, turn, job[9] or 0, policy}
