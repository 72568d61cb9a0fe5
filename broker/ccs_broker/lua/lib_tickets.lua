-- Shared: put an id among the waiting.
--   ccs:waiting:<q>  zset  id by score
--   <q>:1            list  one ticket per waiting id
local function enqueue(id, queue, score, ticket)
  redis.call('ZADD', 'ccs:waiting:' .. queue, score, id)
  redis.call('LPUSH', queue .. ':1', ticket)
end
