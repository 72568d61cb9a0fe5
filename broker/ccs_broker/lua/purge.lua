-- Purge: drop what a quarantined job kept for a replay; its outcome and its stream stay for their time.
-- include: lib_clock lib_events lib_outcome
--
-- KEYS[1] ccs:job:<id>   KEYS[2] ccs:quarantined
-- ARGV[1] id   ARGV[2] blob grace s
-- Returns 1, or 0 if there was nothing to drop: no such job, not quarantined, or purged before
-- All it writes are removals, so a server at its memory limit still serves.
redis.call('ZREM', KEYS[2], ARGV[1])
local job = redis.call('HMGET', KEYS[1], 'state', 'job', 'blobs')
if job[1] ~= 'quarantined' or not job[2] then return 0 end
redis.call('HDEL', KEYS[1], 'job', 'blobs')
drop_blobs(ARGV[1], job[3], ARGV[2])
return 1
