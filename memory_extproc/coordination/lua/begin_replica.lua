-- KEYS: counter, era. ARGV: a new era. Returns the number of the latest message and the era.
redis.call('SET', KEYS[2], ARGV[1], 'NX')
return {tonumber(redis.call('GET', KEYS[1]) or 0), redis.call('GET', KEYS[2])}
