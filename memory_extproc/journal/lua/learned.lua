-- ARGV: when, then id, place, part, token. Returns how many are learned by it.
local learned = 0
for at = 2, #ARGV, 4 do
  local id, is = ARGV[at], redis.call('HMGET', turn(ARGV[at]), 'place', 'stage')
  if is[1] == ARGV[at + 1] and tonumber(is[2]) < 2 and current(ARGV[at + 2], ARGV[at + 3]) then
    leave(id)
    redis.call('HSET', turn(id), 'stage', 2, 'ended', ARGV[1])
    redis.call('ZADD', P .. ':learned', ARGV[1], id)
    learned = learned + 1
  end
end
return learned
