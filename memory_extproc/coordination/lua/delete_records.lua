-- KEYS: index. ARGV: prefixes of the keys to delete; none: all keys. In slices, because unpack is limited to some
-- thousands.
local keys = redis.call('ZRANGE', KEYS[1], 0, -1)
if #ARGV > 0 then
  local chosen = {}
  for _, key in ipairs(keys) do
    for _, start in ipairs(ARGV) do
      if string.sub(key, 1, #start) == start then chosen[#chosen + 1] = key end
    end
  end
  keys = chosen
end
for first = 1, #keys, 500 do
  local last = math.min(first + 499, #keys)
  redis.call('DEL', unpack(keys, first, last))
  redis.call('ZREM', KEYS[1], unpack(keys, first, last))
end
return #keys
