-- KEYS: version, changes. ARGV: ids, or nothing where any may have changed; most entries; milliseconds.
local version = redis.call('INCR', KEYS[1])
if ARGV[1] == '' then
  redis.call('DEL', KEYS[2])
else
  redis.call('RPUSH', KEYS[2], version .. ' ' .. ARGV[1])
  redis.call('LTRIM', KEYS[2], -ARGV[2], -1)
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
end
return version
