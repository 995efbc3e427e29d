-- ARGV: limit, then part and place pairs: entries of these parts after these places, oldest first.
local limit, found, now = tonumber(ARGV[1]), {}, clock()
for at = 2, #ARGV, 2 do
  local from = string.format('%.0f-0', tonumber(ARGV[at + 1]) + 1)
  for _, entry in ipairs(redis.call('XRANGE', stream(ARGV[at]), from, '+', 'COUNT', limit)) do
    found[#found + 1] = {tonumber(string.match(entry[1], '%d+')), entry[2][2], ARGV[at]}
  end
end
table.sort(found, function(one, other) return one[1] < other[1] end)
local rows = {}
for at = 1, math.min(limit, #found) do
  local is = redis.call('HMGET', turn(found[at][2]), 'stage', 'came')
  rows[at] = {found[at][2], found[at][1], found[at][3], is[1], string.format('%.0f', now - tonumber(is[2]))}
end
return rows
