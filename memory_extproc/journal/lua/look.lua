-- ARGV: ids. The stage of each, and its age in milliseconds.
local rows, now = {}, clock()
for at, id in ipairs(ARGV) do
  local is = redis.call('HMGET', turn(id), 'place', 'stage', 'came')
  if is[1] then rows[#rows + 1] = {id, is[1], is[2], string.format('%.0f', now - tonumber(is[3]))} end
end
return rows
