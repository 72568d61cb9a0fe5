-- Shared: a job as it waits, read from its record, and how it leaves the waiting. Needs lib_waiting.
local WAITING = {'queue', 'model', 'score', 'low', 'relegated', 'rank', 'tag', 'cost_us', 'tenant', 'sub'}

-- What is to be known of a job to put it among the waiting, out of the values of the WAITING fields, which come first.
local function waiting_of(f)
  local score = tonumber(f[3])
  return {queue = f[1], model = f[2] or '', score = score, low = tonumber(f[4]) or score, relegated = f[5] == '1',
    rank = tonumber(f[6]) or 2, tag = tonumber(f[7]) or 0, cost = tonumber(f[8]) or 0, tenant = f[9] or 'default',
    sub = f[10]}
end

local function waiting_job(id)
  local fields = redis.call('HMGET', 'ccs:job:' .. id, unpack(WAITING))
  return fields[1] and waiting_of(fields) or nil
end

-- Out of the sets; false if it was in none.
local function take(id, job)
  if redis.call('ZREM', 'ccs:waiting:' .. job.queue, id) == 0 then return false end
  redis.call('ZREM', 'ccs:lane:' .. job.queue .. ':' .. job.model, id)
  if rank_now(job) >= 3 then
    redis.call('ZREM', 'ccs:aged:' .. job.queue, id)
    redis.call('ZREM', 'ccs:aged:' .. job.queue .. ':' .. job.model, id)
  end
  count(job, -1)
  return true
end

-- Without a ticket: the caller has it. False if it didn't wait.
local function dequeue(id, job, ticket)
  if not take(id, job) then return false end
  if redis.call('HINCRBY', 'ccs:share:n', job.tenant, -1) <= 0 then
    redis.call('HDEL', 'ccs:share:n', job.tenant)
    if redis.call('EXISTS', 'ccs:share:n') == 1 then
      redis.call('HINCRBYFLOAT', 'ccs:share', 'w', -weight_of(job.tenant))
    else
      -- Nobody waits: what a tenant had of the device while nobody wanted it is not held against it.
      redis.call('HSET', 'ccs:share', 'w', 0)
      redis.call('DEL', 'ccs:share:f')
    end
  end
  if ticket then redis.call('LREM', job.queue .. ':1', -1, ticket) end
  return true
end

-- Nothing waits: counts that a record lost beyond its lifetime has left behind go.
local function forget_counts()
  redis.call('DEL', 'ccs:share:n', 'ccs:share:f')
  if redis.call('EXISTS', 'ccs:share') == 1 then redis.call('HSET', 'ccs:share', 'w', '0') end
  for _, field in ipairs(redis.call('HKEYS', 'ccs:load')) do
    if field ~= 'run' then redis.call('HDEL', 'ccs:load', field) end
  end
  if redis.call('EXISTS', 'ccs:load') == 1 and redis.call('EXISTS', 'ccs:running') == 0 then
    redis.call('HSET', 'ccs:load', 'run', '0')
  end
end
