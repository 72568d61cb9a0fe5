-- Teach: say how long jobs of a kind take, for the scripts that publish them.
--
-- KEYS[1] ccs:work:<q>:<model>  hash  f0..f4: us until the first output per unit of 1, prompt characters, new tokens,
--                                     images and media bytes; c0..c4: us in all
-- ARGV[1] TTL s   ARGV[2..] two per coefficient: name, value
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1
