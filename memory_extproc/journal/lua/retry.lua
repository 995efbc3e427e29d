-- ARGV: ids
local ids, count = {}, 0
for _, id in ipairs(ARGV) do
  local is = redis.call('HMGET', turn(id), 'stage', 'place')
  if is[1] == '3' then ids[#ids + 1] = {tonumber(is[2]), id} end
end
table.sort(ids, function(one, other) return one[1] < other[1] end)
for _, one in ipairs(ids) do again(one[2]) end
return #ids
