-- ARGV: owner, after, limit
local ids = redis.call('ZRANGEBYSCORE', P .. ':owner:' .. ARGV[1], '(' .. ARGV[2], '+inf', 'LIMIT', 0, ARGV[3])
local rows = {}
for at, id in ipairs(ids) do rows[at] = {id, unpack(row(id))} end
return rows
