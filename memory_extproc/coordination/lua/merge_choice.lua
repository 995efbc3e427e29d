-- KEYS: an owner's changes. ARGV: a copy of a change, inserted in the order of time.
local at = cjson.decode(ARGV[1])[2]
local later = false
for _, change in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  if change == ARGV[1] then return 0 end
  if not later and cjson.decode(change)[2] > at then later = change end
end
if later then return redis.call('LINSERT', KEYS[1], 'BEFORE', later, ARGV[1]) end
return redis.call('RPUSH', KEYS[1], ARGV[1])
