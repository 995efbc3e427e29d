-- KEYS: expiries, register. Returns holder, entry and lease state of each replica; a holder without an entry has an
-- older version.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local found, seen = {}, {}
local entries = redis.call('HGETALL', KEYS[2])
for n = 1, #entries, 2 do
  local runs = tonumber(redis.call('ZSCORE', KEYS[1], entries[n]) or 0) > now
  seen[entries[n]] = true
  found[#found + 1] = {entries[n], entries[n + 1], runs and 1 or 0}
end
for _, holder in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now, '+inf')) do
  if not seen[holder] then found[#found + 1] = {holder, '?|serves|' .. holder, 1} end
end
return found
