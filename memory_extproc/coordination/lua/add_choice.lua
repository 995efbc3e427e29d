-- KEYS: an owner's changes. ARGV: a change, the latest that its sender knows. Repeating it changes nothing.
local latest = redis.call('LINDEX', KEYS[1], -1) or ''
if latest == ARGV[1] then return 1 end
if latest ~= ARGV[2] then return 0 end
redis.call('RPUSH', KEYS[1], ARGV[1])
return 1
