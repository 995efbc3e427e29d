-- KEYS: names, counts, totals, names of those with memories in quarantine. ARGV: name, memories, time, quarantined.
local before = redis.call('HGET', KEYS[2], ARGV[1]) or '0 0 0'
local memories, quarantined = string.match(before, '^(%d+) %d+ (%d+)')
redis.call('HINCRBY', KEYS[3], 'memories', ARGV[2] - (memories or 0))
redis.call('HINCRBY', KEYS[3], 'quarantined', ARGV[4] - (quarantined or 0))
if ARGV[2] == '0' then
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[2], ARGV[1])
else
  redis.call('ZADD', KEYS[1], 0, ARGV[1])
  redis.call('HSET', KEYS[2], ARGV[1], table.concat(ARGV, ' ', 2))
end
if ARGV[4] == '0' then
  redis.call('ZREM', KEYS[4], ARGV[1])
else
  redis.call('ZADD', KEYS[4], 0, ARGV[1])
end
return 1
