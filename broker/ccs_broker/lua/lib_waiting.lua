-- Shared: the waiting jobs, in all the sets that hold them, and what is counted of them. Needs lib_clock.
--   ccs:waiting:<q>       zset  id by score: the truth for counts, positions and tickets
--   ccs:lane:<q>:<model>  zset  the same by the model that is named, or none: what a claim looks at, so that jobs of
--                               a model it doesn't serve can't stand in its way
--   ccs:aged:<q>[:<model>] zset id by submitted ms, of those of class batch and those relegated: the floor's
--   <q>:1                 list  one ticket per waiting id
--   ccs:load              hash  h<b>: sum of their costs in us, by the size (a power of 2) of their score beside its
--                               base; run: costs of those that run; low:<q>: how many of the queue are relegated
--   ccs:share             hash  v: virtual time; w: weight of all tenants that have jobs waiting; floor: its credit,
--                               due: what that must come to for its next turn; day: last one on which TTLs were
--                               renewed; weighed: "1" if some tenant has a weight of its own; full:<q>: "1" once as
--                               many wait as may
--   ccs:share:n           hash  tenant: its waiting jobs
--   ccs:share:f           zset  "rank|tenant" by the virtual time at which its next job of the class begins
--   ccs:weights           hash  tenant: its weight, where that isn't 1
--   ccs:muted:<q>         string  some worker doesn't listen to the queue's tickets just now
--   ccs:nudge:<q>         list  wakes such a worker for an urgent job
local function score_now(job)
  return job.relegated and job.low or job.score
end

-- Rank, but 4 for a relegated job.
local function rank_now(job)
  return job.relegated and 4 or job.rank
end

local function bucket_of(size)
  if size < 1 then return 0 end
  local _, exponent = math.frexp(size)
  return exponent - 1
end

local function weight_of(tenant)
  return tonumber(redis.call('HGET', 'ccs:weights', tenant)) or 1
end

local function count(job, by)
  if job.relegated then redis.call('HINCRBY', 'ccs:load', 'low:' .. job.queue, by) end
  redis.call('HINCRBY', 'ccs:load', 'h' .. bucket_of(score_now(job) - job.tag), whole(by * job.cost))
end

-- Into the sets; for an id that is in none of them.
local function put(id, job)
  local score = whole(score_now(job))
  redis.call('ZADD', 'ccs:waiting:' .. job.queue, score, id)
  redis.call('ZADD', 'ccs:lane:' .. job.queue .. ':' .. job.model, score, id)
  if rank_now(job) >= 3 then
    redis.call('ZADD', 'ccs:aged:' .. job.queue, job.sub, id)
    redis.call('ZADD', 'ccs:aged:' .. job.queue .. ':' .. job.model, job.sub, id)
  end
  count(job, 1)
end

local function nudge(job, ticket)
  if job.rank > 1 or job.relegated or redis.call('EXISTS', 'ccs:muted:' .. job.queue) == 0 then return end
  redis.call('LPUSH', 'ccs:nudge:' .. job.queue, ticket)
  redis.call('LTRIM', 'ccs:nudge:' .. job.queue, 0, 63)
  redis.call('PEXPIRE', 'ccs:nudge:' .. job.queue, 2000)
end

-- Returns the number of tickets, which is that of waiting jobs, but for those that are being answered.
local function enqueue(id, job, ticket)
  put(id, job)
  if redis.call('HINCRBY', 'ccs:share:n', job.tenant, 1) == 1 then
    redis.call('HINCRBYFLOAT', 'ccs:share', 'w', job.weight or weight_of(job.tenant))
  end
  local tickets = redis.call('LPUSH', job.queue .. ':1', ticket)
  nudge(job, ticket)
  return tickets
end

-- A claimed job of this cost runs no longer (or, with a negative cost, runs from now on).
local function stops_running(cost)
  redis.call('HINCRBY', 'ccs:load', 'run', whole(-(tonumber(cost) or 0)))
end
