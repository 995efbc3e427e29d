-- ARGV: parts
local first = nil
for part = 0, ARGV[1] - 1 do
  local entry = redis.call('XRANGE', stream(part), '-', '+', 'COUNT', 1)[1]
  if entry then
    local place = tonumber(string.match(entry[1], '%d+'))
    if not first or place < first[1] then first = {place, entry[2][2]} end
  end
end
local oldest = first and redis.call('HGET', turn(first[2]), 'at') or ''
return {waiting(ARGV[1]), redis.call('ZCARD', P .. ':dead'), oldest}
