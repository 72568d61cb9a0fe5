-- Shared: append one event to a job's log and ring its bell. Needs lib_clock.
--   ccs:job:<id>     hash    field seq: number of the last event
--   ccs:log:<id>     stream  entry <seq>-0, fields k kind, n attempt, t time ms, x text, d data JSON, i token ids
--   ccs:events:<id>  channel the event as JSON, without token ids
-- text, data and ids may be empty strings; data is JSON of an object.
local function append_event(id, kind, attempt, now_ms, text, data, ids)
  local seq = redis.call('HINCRBY', 'ccs:job:' .. id, 'seq', 1)
  local fields = {'k', kind, 'n', attempt, 't', whole(now_ms)}
  if text ~= '' then fields[#fields + 1] = 'x'; fields[#fields + 1] = text end
  if data ~= '' then fields[#fields + 1] = 'd'; fields[#fields + 1] = data end
  if ids ~= '' then fields[#fields + 1] = 'i'; fields[#fields + 1] = ids end
  redis.call('XADD', 'ccs:log:' .. id, seq .. '-0', unpack(fields))
  local bell = '{"v":1,"job":"' .. id .. '","seq":' .. seq .. ',"kind":"' .. kind .. '","attempt":' .. attempt
    .. ',"at_ms":' .. whole(now_ms)
  if text ~= '' then bell = bell .. ',"text":' .. cjson.encode(text) end
  if data ~= '' then bell = bell .. ',"data":' .. data end
  redis.call('PUBLISH', 'ccs:events:' .. id, bell .. '}')
  return seq
end
