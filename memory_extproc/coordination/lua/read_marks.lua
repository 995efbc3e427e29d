-- KEYS: shut jobs, cuts, items, generation. ARGV: fields of the generation.
return {redis.call('SMEMBERS', KEYS[1]), redis.call('SMEMBERS', KEYS[2]), redis.call('HGETALL', KEYS[3]),
  redis.call('HMGET', KEYS[4], unpack(ARGV))}
