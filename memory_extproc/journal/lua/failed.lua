-- ARGV: when, id, place, part, token, reason, dead, most
local id, is = ARGV[2], redis.call('HMGET', turn(ARGV[2]), 'place', 'stage')
if is[1] ~= ARGV[3] or tonumber(is[2]) > 1 then return 0 end
if is[2] == '1' and not current(ARGV[4], ARGV[5]) then return 0 end
redis.call('HINCRBY', turn(id), 'attempts', 1)
redis.call('HSET', turn(id), 'reason', ARGV[6], 'ended', ARGV[1])
if ARGV[7] == '1' then dead(id, is[1], ARGV[6], ARGV[1], tonumber(ARGV[8])) end
return 1
