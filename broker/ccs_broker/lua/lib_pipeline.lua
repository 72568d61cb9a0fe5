-- Shared: pipelines, and what the ends of their steps mean for them. Needs lib_clock, lib_events, lib_outcome,
-- lib_waiting, lib_leaving.
--   ccs:job:<pipeline>   hash  kind "pipeline"; steps: their names, with spaces; left: steps that haven't ended; open:
--                              those of them that were published; st:<step>: how it ended, or "skipped" or "defaulted"
--                              by its policy; ending: how the pipeline will end once what runs of it has; blame: the
--                              step whose failure ends it; output: the step whose text is the pipeline's; spec:<step>:
--                              the step's job, until the end; default:<step>: text in the place of a failed one's;
--                              plan: JSON of what its outcome is to say of how it was made, if anything
--   ccs:job:<step's id>  hash  pipe: id of its pipeline; step: its name; policy: "fail" | "skip" | "default"; linked:
--                              "1" if Celery goes on after it; skipped: "1" if it needs a text that was skipped
local function step_id(pipe, step)
  return pipe .. '-' .. step
end

local function is_open(pipe)
  local found = redis.call('HMGET', 'ccs:job:' .. pipe, 'state', 'ending')
  return found[1] and not ENDS[found[1]] and not found[2]
end

-- Error of a step's outcome as JSON data, its message beginning with the step's name; nil if it has none.
local function error_of(pipe, step)
  local outcome = redis.call('HGET', 'ccs:job:' .. step_id(pipe, step), 'outcome')
  local found = outcome and cjson.decode(outcome).error
  if not found then return nil end
  return {code = found.code, message = "step '" .. step .. "': " .. found.message, retryable = found.retryable == true}
end

local COUNTED = {'prompt_tokens', 'completion_tokens', 'images', 'audio_s', 'device_s'}

-- What the steps came to: their states and models, what they used together, and the text of one of them.
local function gathered(pipe, output)
  local key = 'ccs:job:' .. pipe
  local steps, usage, text = {}, {}, ''
  for step in string.gmatch(redis.call('HGET', key, 'steps'), '%S+') do
    local found = redis.call('HMGET', key, 'st:' .. step, 'default:' .. step)
    local told = redis.call('HGET', 'ccs:job:' .. step_id(pipe, step), 'outcome')
    local outcome = told and cjson.decode(told) or {}
    steps[step] = {state = found[1] or 'cancelled', model = outcome.model, code = outcome.error and outcome.error.code}
    for _, name in ipairs(COUNTED) do
      local used = outcome.usage and outcome.usage[name]
      if type(used) == 'number' then usage[name] = (usage[name] or 0) + used end
    end
    if step == output then
      text = found[1] == 'defaulted' and found[2] or found[1] == 'succeeded' and outcome.text or ''
    end
  end
  return steps, usage, text
end

-- End a pipeline if nothing of it can come any more.
local function settle_pipeline(pipe, now_ms, ttl)
  local key = 'ccs:job:' .. pipe
  local job = redis.call('HMGET', key, 'state', 'ending', 'open', 'left', 'output', 'blame', 'steps')
  if not job[1] or ENDS[job[1]] then return end
  if tonumber(job[4]) > 0 and not (job[2] and tonumber(job[3]) <= 0) then return end
  local state = job[2] or 'succeeded'
  local steps, usage, text = gathered(pipe, job[5])
  local plan = redis.call('HGET', key, 'plan')
  local failure = job[6] and error_of(pipe, job[6]) or nil
  if state == 'expired' and not failure then
    failure = {code = 'DEADLINE_EXCEEDED', message = 'the deadline passed while the pipeline ran', retryable = false}
  end
  local outcome = {v = 1, state = state, text = state == 'succeeded' and text or '', usage = usage, attempts = 0,
    data = {steps = steps, plan = plan and cjson.decode(plan) or nil}, error = failure}
  local told = failure or {}
  told.steps, told.usage = steps, usage
  for step in string.gmatch(job[7], '%S+') do redis.call('HDEL', key, 'spec:' .. step) end
  end_job(pipe, state, 0, now_ms, cjson.encode(outcome), cjson.encode(told), ttl, '')
end

-- Let nothing of a pipeline begin any more, and what runs of it stop; it then ends as `ending`.
local function stop_pipeline(pipe, ending, blame, now_ms, ttl)
  local key = 'ccs:job:' .. pipe
  -- Whoever looks at it sees that it stops.
  redis.call('HSET', key, 'ending', ending, 'state', 'running', 'cancel', '1')
  if blame then redis.call('HSET', key, 'blame', blame) end
  for step in string.gmatch(redis.call('HGET', key, 'steps'), '%S+') do
    local id = step_id(pipe, step)
    local job = redis.call('HMGET', 'ccs:job:' .. id, 'state', 'attempt')
    if job[1] == 'running' then
      redis.call('HSET', 'ccs:job:' .. id, 'cancel', '1')
      redis.call('PUBLISH', 'ccs:control', id .. '|' .. job[2])
    elseif job[1] == 'waiting' or job[1] == 'delayed' then
      redis.call('ZREM', 'ccs:delayed', id)
      dequeue(id, waiting_job(id), ttl[4])
      cancel_waiting(id, tonumber(job[2]) or 0, now_ms, ttl)
    end
  end
  settle_pipeline(pipe, now_ms, ttl)
end

-- message: what Celery goes on with, where no worker holds the step; false or nil otherwise.
step_ended = function(id, pipe, state, now_ms, ttl, message)
  local key = 'ccs:job:' .. pipe
  local line = redis.call('HMGET', key, 'state', 'ending')
  if not line[1] or ENDS[line[1]] then return end
  local job = redis.call('HMGET', 'ccs:job:' .. id, 'step', 'policy', 'linked', 'skipped')
  local step, policy = job[1], job[2]
  local word = state
  if job[4] or state ~= 'succeeded' and not line[2] and policy == 'skip' then
    word = 'skipped'
  elseif state ~= 'succeeded' and not line[2] and policy == 'default' then
    word = 'defaulted'
  end
  redis.call('HSET', key, 'st:' .. step, word)
  redis.call('HINCRBY', key, 'open', -1)
  redis.call('HINCRBY', key, 'left', -1)
  if word == state and state ~= 'succeeded' and not line[2] then
    stop_pipeline(pipe, state == 'quarantined' and 'failed' or state, step, now_ms, ttl)
    return
  end
  if word ~= state and message and job[3] then
    -- It ended without a worker that would go on: whoever claims it next does that, and nothing else.
    redis.call('HSET', 'ccs:job:' .. id, 'msg', message, 'links', '1')
    enqueue(id, waiting_job(id), ttl[4])
  end
  settle_pipeline(pipe, now_ms, ttl)
end
