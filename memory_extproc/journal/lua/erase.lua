-- ARGV: owner, limit, then ids; without ids: all
local ids, erased = {unpack(ARGV, 3)}, 0
if #ids == 0 then ids = redis.call('ZRANGE', P .. ':owner:' .. ARGV[1], 0, ARGV[2] - 1) end
for _, id in ipairs(ids) do
  if redis.call('HGET', turn(id), 'owner') == ARGV[1] then erased = erased + erase(id) end
end
return erased
