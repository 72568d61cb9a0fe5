-- Replayed: note in a quarantined job's hash which job runs its payload again.
--
-- KEYS[1] ccs:job:<id>
-- ARGV[1] id of the new job
-- Returns 1, or 0 if the record has gone in the meantime: a hash made anew would never expire
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'replayed_as', ARGV[1])
return 1
