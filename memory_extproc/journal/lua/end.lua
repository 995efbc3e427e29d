-- ARGV: owner, session, whether the holder asks. Another holder may have begun these turns: the last turn of each
-- session is queued for it.
local last = {}
for _, id in ipairs(redis.call('ZRANGE', P .. ':owner:' .. ARGV[1], 0, -1)) do
  local is = redis.call('HMGET', turn(id), 'stage', 'session', 'part')
  if tonumber(is[1]) < 2 and (ARGV[2] == '' or is[2] == ARGV[2]) then
    redis.call('HSET', turn(id), 'last', 1)
    if is[1] == '1' then last[is[2]] = {id, is[3]} end
  end
end
if ARGV[3] ~= '1' then
  for _, one in pairs(last) do redis.call('HSET', P .. ':ended', one[1], one[2]) end
end
return 1
