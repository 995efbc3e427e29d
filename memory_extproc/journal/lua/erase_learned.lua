-- ARGV: before, limit
local ids = redis.call('ZRANGEBYSCORE', P .. ':learned', '-inf', '(' .. ARGV[1], 'LIMIT', 0, ARGV[2])
for _, id in ipairs(ids) do erase(id) end
return #ids
