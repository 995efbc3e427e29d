-- KEYS: leases, expiries, counter, era. ARGV: number, its era. Returns how many replicas with a lease have not read
-- that message; -1: it is gone.
if redis.call('GET', KEYS[4]) ~= ARGV[2] or tonumber(redis.call('GET', KEYS[3]) or 0) < tonumber(ARGV[1]) then
  return -1
end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do
  redis.call('HDEL', KEYS[1], gone)
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local behind = 0
for _, holder in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  if tonumber(redis.call('HGET', KEYS[1], holder) or 0) < tonumber(ARGV[1]) then behind = behind + 1 end
end
return behind
