-- KEYS: generation. ARGV: the lost generation, a new id, directory. The first caller begins the new generation.
local id = redis.call('HGET', KEYS[1], 'id') or ''
if id == '' or id == ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'id', ARGV[2])
end
return redis.call('HMGET', KEYS[1], 'id', ARGV[3])
