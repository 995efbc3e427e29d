-- KEYS: counter, leases (holder → last message read), expiries (holder → end of its lease), register (holder → age
-- of its oldest waiting turn, whether it left, directory). ARGV: holder, milliseconds, last message read, directory,
-- time of the oldest waiting turn, the era of the last message read. Only the server's clock counts. Returns 0, and
-- gives no lease, if the era ended or messages that were read are gone.
if redis.call('GET', KEYS[5]) ~= ARGV[6] or tonumber(redis.call('GET', KEYS[1]) or 0) < tonumber(ARGV[3]) then
  return 0
end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
redis.call('ZADD', KEYS[3], now + tonumber(ARGV[2]), ARGV[1])
local entries = redis.call('HGETALL', KEYS[4])
for n = 1, #entries, 2 do
  local runs = tonumber(redis.call('ZSCORE', KEYS[3], entries[n]) or 0) > now
  if not runs and string.match(entries[n + 1], '^[^|]*|[^|]*|(.*)$') == ARGV[4] then
    redis.call('HDEL', KEYS[4], entries[n])
  end
end
redis.call('HSET', KEYS[4], ARGV[1], ARGV[5] .. '|serves|' .. ARGV[4])
return 1
