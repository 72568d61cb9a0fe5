-- Shared: a job's expected device time and its scores; the Lua side of ccs_broker.priority. Needs lib_waiting.
--   ccs:work:<q>:<model>  hash  f0..f4, c0..c4: microseconds per unit of 1, prompt characters, new tokens, images and
--                               media bytes; f until the first output, c for all of a job
local CONSTANT_US, FIRST_US, COST_US = 5000, 50000, 200000
local LATE_MARGIN = 0.05

local function linear(values, from, sizes)
  local sum = tonumber(values[from])
  local i = from
  for size in string.gmatch(sizes, '%S+') do
    i = i + 1
    sum = sum + (tonumber(values[i]) or 0) * tonumber(size)
  end
  return math.floor(sum)
end

-- Microseconds until the first output, and in all.
local function expected_work(queue, model, sizes)
  local key = 'ccs:work:' .. queue .. ':' .. model
  if redis.call('EXISTS', key) == 0 then return FIRST_US, COST_US end
  local values = redis.call('HMGET', key, 'f0', 'f1', 'f2', 'f3', 'f4', 'c0', 'c1', 'c2', 'c3', 'c4')
  if not (values[1] and values[6]) then return FIRST_US, COST_US end
  local first = math.max(1, linear(values, 1, sizes))
  return first, math.max(first, linear(values, 6, sizes))
end

local function score_of(base, offset, factor, first)
  return base + offset + math.floor(factor * (first + CONSTANT_US))
end

-- Milliseconds from submission from which the first output can't come in time any more.
local function late_after(target, first)
  return math.floor((target - first - math.floor(LATE_MARGIN * target)) / 1000)
end

-- Microseconds until a job would be started whose score beside its base is `size`.
local function predicted_wait(size, now_ms)
  local before, own = 0, bucket_of(size)
  local load = redis.call('HGETALL', 'ccs:load')
  for i = 1, #load, 2 do
    local bucket = string.match(load[i], '^h(%d+)$')
    if bucket and tonumber(bucket) <= own then
      before = before + tonumber(load[i + 1])
    elseif load[i] == 'run' then
      before = before + tonumber(load[i + 1]) / 2
    end
  end
  return math.max(0, before) / math.max(1, redis.call('ZCOUNT', 'ccs:workers', whole(now_ms), '+inf'))
end
