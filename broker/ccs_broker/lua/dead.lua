-- Dead: move a raw message that can't be understood from its list to the dead letters, bounded.
--
-- KEYS[1] list it lies on, or an unused name   KEYS[2] ccs:dead
-- ARGV[1] raw bytes as they lie there, empty if already popped   ARGV[2] the dead letter JSON
-- ARGV[3] most dead letters kept   ARGV[4] TTL s
-- Returns 1, or 0 if somebody else had moved it
if ARGV[1] ~= '' and redis.call('LREM', KEYS[1], -1, ARGV[1]) == 0 then return 0 end
redis.call('LPUSH', KEYS[2], ARGV[2])
redis.call('LTRIM', KEYS[2], 0, tonumber(ARGV[3]) - 1)
redis.call('EXPIRE', KEYS[2], ARGV[4])
return 1
