-- ARGV: when, then id and place pairs. If an older answer's messages were stored after a newer answer's, the turn is
-- stored once more, so that the newer messages remain.
for at = 2, #ARGV, 2 do
  local id, is = ARGV[at], redis.call('HMGET', turn(ARGV[at]), 'place', 'stage')
  if is[1] == ARGV[at + 1] then
    if is[2] == '0' then redis.call('HSET', turn(id), 'stage', 1, 'attempts', 0, 'ended', ARGV[1]) end
  elseif is[2] == '1' or is[2] == '2' then
    again(id)
    redis.call('HSET', turn(id), 'replaced', 1)
  end
end
return 1
