-- A sorted set holds each owner's record keys with their expiry, so that they can be found and deleted. The server's
-- clock is used throughout: replicas may disagree about the time. KEYS: record, index.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if ARGV[1] ~= 'put' then
  local there = redis.call('GET', KEYS[1])
  if ARGV[1] == 'absent' and there then return 0 end
  if ARGV[1] == 'same' and there ~= ARGV[2] then return 0 end
end
local ttl = tonumber(ARGV[4])
redis.call('SET', KEYS[1], ARGV[3], 'PX', ttl)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('ZADD', KEYS[2], now + ttl, KEYS[1])
if redis.call('PTTL', KEYS[2]) < ttl then redis.call('PEXPIRE', KEYS[2], ttl) end
return 1
