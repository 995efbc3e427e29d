-- Each live replica and its number of parts.
local now, shares, rows = clock(), {}, {}
for _, holder in ipairs(redis.call('ZRANGEBYSCORE', P .. ':replicas', now, '+inf')) do shares[holder] = 0 end
local held = redis.call('HGETALL', P .. ':parts')
for at = 2, #held, 2 do
  local until_, holder = string.match(held[at], '^(%d+)|(.*)$')
  if tonumber(until_) > now and shares[holder] then shares[holder] = shares[holder] + 1 end
end
for holder, count in pairs(shares) do rows[#rows + 1] = {holder, count} end
return rows
