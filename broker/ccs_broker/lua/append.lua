-- Append: events of one running attempt, all or none; refused if the attempt no longer holds the job.
-- include: lib_clock lib_events
--
-- KEYS[1] ccs:job:<id>   KEYS[2] ccs:log:<id>
-- ARGV[1] id   ARGV[2] attempt   ARGV[3] "1" if these events carry the job's first output, else empty
-- ARGV[4] number of the last event the worker knows of: what lies behind it was written by an earlier try of this
--         very call whose reply was lost, and is skipped
-- ARGV[5..] four per event: kind, text, data JSON, token ids (empty where there is none)
-- Returns {"ok" | "cancelling" | "expired", last seq} | {"lost", 0}
local job = redis.call('HMGET', KEYS[1], 'state', 'attempt', 'cancel', 'expire', 'seq', 'aside')
if job[1] ~= 'running' or job[2] ~= ARGV[2] then return {'lost', 0} end
local now_ms = math.floor(now_us() / 1000)
local seq, after = tonumber(job[5]), tonumber(ARGV[4])
-- An event that a script wrote in between, when the job became late, was none of these.
local written = seq - after - ((tonumber(job[6]) or 0) > after and 1 or 0)
for i = 5 + 4 * written, #ARGV, 4 do
  seq = append_event(ARGV[1], ARGV[i], ARGV[2], now_ms, ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
end
if ARGV[3] == '1' then redis.call('HSETNX', KEYS[1], 'first', whole(now_ms)) end
if job[3] then return {'cancelling', seq} end
if tonumber(job[4]) <= now_ms then return {'expired', seq} end
return {'ok', seq}
