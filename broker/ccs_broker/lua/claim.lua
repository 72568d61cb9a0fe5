-- Claim: turn a popped ticket into the most urgent job this worker can take, over all queues it listens to.
-- include: lib_clock lib_events lib_outcome lib_tickets lib_queue
--
-- KEYS[1] ccs:running
-- ARGV[1] queue whose ticket was popped   ARGV[2] worker name      ARGV[3] lease ms
-- ARGV[4] candidates looked at per queue  ARGV[5] ticket           ARGV[6] job TTL s
-- ARGV[7] log TTL s                       ARGV[8] blob grace s
-- ARGV[9] model aliases served, each between spaces (" a b "), or empty for any
-- ARGV[10..] queues with room, the popped one included or not
-- Returns {id, attempt, queue, msg, job, seq, sub ms, expire ms, links} | {"none"}: the ticket is spent
--         links: "1" if the job has its outcome (then `job` is that) and only what follows it in Celery is to be done
--       | {"noroom"}: jobs wait, none that fits; the ticket has been pushed back
-- First write is a removal wherever there is something to claim, so a server at its memory limit still serves.
local popped, ticket = ARGV[1], ARGV[5]
local ttl = {ARGV[6], ARGV[7], ARGV[8]}
local now = now_us()
local now_ms = math.floor(now / 1000)
promote_due(now_ms, 16, ticket)

local best, best_score, best_queue
for q = 10, #ARGV do
  local waiting = 'ccs:waiting:' .. ARGV[q]
  local heads = redis.call('ZRANGE', waiting, 0, tonumber(ARGV[4]) - 1, 'WITHSCORES')
  for i = 1, #heads, 2 do
    local id, score = heads[i], tonumber(heads[i + 1])
    if best and score >= best_score then break end
    local job = redis.call('HMGET', 'ccs:job:' .. id, 'expire', 'model', 'links')
    if not job[1] then
      redis.call('ZREM', waiting, id)
    elseif not job[3] and tonumber(job[1]) <= now_ms then
      redis.call('ZREM', waiting, id)
      redis.call('LREM', ARGV[q] .. ':1', -1, ticket)
      expire_waiting(id, now_ms, ttl)
    elseif not job[2] or ARGV[9] == '' or string.find(ARGV[9], ' ' .. job[2] .. ' ', 1, true) then
      best, best_score, best_queue = id, score, ARGV[q]
      break
    end
  end
end

if not best then
  if redis.call('ZCARD', 'ccs:waiting:' .. popped) > redis.call('LLEN', popped .. ':1') then
    redis.call('RPUSH', popped .. ':1', ticket)
    return {'noroom'}
  end
  return {'none'}
end

redis.call('ZREM', 'ccs:waiting:' .. best_queue, best)
if best_queue ~= popped then
  -- The popped ticket stands for a job that still waits there: exchange it for one of the queue we took from.
  if redis.call('LREM', best_queue .. ':1', -1, ticket) > 0
    or redis.call('ZCARD', 'ccs:waiting:' .. popped) > redis.call('LLEN', popped .. ':1') then
    redis.call('RPUSH', popped .. ':1', ticket)
  end
end
local key = 'ccs:job:' .. best
local attempt = redis.call('HINCRBY', key, 'attempt', 1)
redis.call('ZADD', KEYS[1], whole(now_ms + tonumber(ARGV[3])), best .. '|' .. attempt)
local job = redis.call('HMGET', key, 'kind', 'msg', 'job', 'sub', 'expire', 'first', 'links', 'outcome')
if job[7] then return {best, attempt, best_queue, job[2] or '', job[8] or '', 0, job[4], job[5], '1'} end
redis.call('HSET', key, 'state', 'running', 'worker', ARGV[2])
redis.call('HSETNX', key, 'start', whole(now_ms))
local seq = 0
if job[1] == 'job' then
  seq = append_event(best, job[6] and 'resumed' or 'started', attempt, now_ms, '', '{"worker":' .. cjson.encode(ARGV[2]) .. '}', '')
end
return {best, attempt, best_queue, job[2] or '', job[3] or '', seq, job[4], job[5], ''}
