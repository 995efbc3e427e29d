-- ARGV: when, most, ids of unreadable turns
for at = 3, #ARGV do
  local is = redis.call('HMGET', turn(ARGV[at]), 'place', 'stage')
  if is[1] and tonumber(is[2]) < 2 then dead(ARGV[at], is[1], 'unreadable', ARGV[1], tonumber(ARGV[2])) end
end
return 1
