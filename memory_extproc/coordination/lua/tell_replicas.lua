-- Messages are a sorted set by number. KEYS: counter, messages, era. ARGV: subject, a new era. The number is a
-- prefix, so that members are unique. Returns it and its era.
redis.call('SET', KEYS[3], ARGV[2], 'NX')
local number = redis.call('INCR', KEYS[1])
redis.call('ZADD', KEYS[2], number, number .. ':' .. ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', number - 100000)
return {number, redis.call('GET', KEYS[3])}
