-- Shared: append one event to a job's log and ring its bell. Needs lib_clock.
--   ccs:job:<id>     hash    fields seq: number of the last event; pipe, step: the pipeline that it is a step of
--   ccs:log:<id>     stream  entry <seq>-0, fields k kind, n attempt, t time ms, x text, d data JSON, i token ids,
--                            s step
--   ccs:events:<id>  channel the event as JSON, without token ids
-- text, data, ids and step may be empty strings; data is JSON of an object.
local ENDS = {succeeded = true, failed = true, cancelled = true, expired = true, quarantined = true}

local function write_event(id, kind, attempt, now_ms, text, data, ids, step)
  local seq = redis.call('HINCRBY', 'ccs:job:' .. id, 'seq', 1)
  local fields = {'k', kind, 'n', attempt, 't', whole(now_ms)}
  if text ~= '' then fields[#fields + 1] = 'x'; fields[#fields + 1] = text end
  if data ~= '' then fields[#fields + 1] = 'd'; fields[#fields + 1] = data end
  if ids ~= '' then fields[#fields + 1] = 'i'; fields[#fields + 1] = ids end
  if step ~= '' then fields[#fields + 1] = 's'; fields[#fields + 1] = step end
  redis.call('XADD', 'ccs:log:' .. id, seq .. '-0', unpack(fields))
  local bell = '{"v":1,"job":"' .. id .. '","seq":' .. seq .. ',"kind":"' .. kind .. '","attempt":' .. attempt
    .. ',"at_ms":' .. whole(now_ms)
  if step ~= '' then bell = bell .. ',"step":"' .. step .. '"' end
  if text ~= '' then bell = bell .. ',"text":' .. cjson.encode(text) end
  if data ~= '' then bell = bell .. ',"data":' .. data end
  redis.call('PUBLISH', 'ccs:events:' .. id, bell .. '}')
  return seq
end

-- A step's events are its pipeline's too. The end of a step ends no pipeline: there it is progress.
local function tell_pipeline(pipe, step, kind, attempt, now_ms, text, data)
  local key = 'ccs:job:' .. pipe
  local state = redis.call('HGET', key, 'state')
  if not state or ENDS[state] then return end
  if kind == 'started' and state == 'waiting' then
    redis.call('HSET', key, 'state', 'running', 'start', whole(now_ms))
  elseif kind == 'delta' then
    redis.call('HSETNX', key, 'first', whole(now_ms))
  elseif ENDS[kind] then
    local rest = string.match(data, '^{(.+)}$')
    data = '{"ended":"' .. kind .. '"' .. (rest and ',' .. rest or '') .. '}'
    kind = 'progress'
  end
  write_event(pipe, kind, attempt, now_ms, text, data, '', step)
end

local function append_event(id, kind, attempt, now_ms, text, data, ids)
  local seq = write_event(id, kind, attempt, now_ms, text, data, ids, '')
  local owner = redis.call('HMGET', 'ccs:job:' .. id, 'pipe', 'step')
  if owner[1] then tell_pipeline(owner[1], owner[2], kind, attempt, now_ms, text, data) end
  return seq
end
