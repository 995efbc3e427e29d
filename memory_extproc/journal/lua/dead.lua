-- ARGV: after, limit
local ids = redis.call('ZRANGEBYSCORE', P .. ':dead', '(' .. ARGV[1], '+inf', 'LIMIT', 0, ARGV[2])
local rows = {}
for at, id in ipairs(ids) do
  rows[at] = {id, unpack(redis.call('HMGET', turn(id), 'place', 'owner', 'reason', 'attempts', 'at', 'ended'))}
end
return rows
