-- KEYS: leases, expiries, register. ARGV: holder, directory, time of the oldest waiting turn.
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
if ARGV[3] == '-' then redis.call('HDEL', KEYS[3], ARGV[1])
else redis.call('HSET', KEYS[3], ARGV[1], ARGV[3] .. '|left|' .. ARGV[2]) end
return 1
