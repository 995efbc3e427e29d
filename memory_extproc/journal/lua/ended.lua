-- ARGV: parts. The turns queued by END for these parts, each returned once.
local held, ids = {}, {}
for _, part in ipairs(ARGV) do held[part] = true end
local laid = redis.call('HGETALL', P .. ':ended')
for at = 1, #laid, 2 do
  if held[laid[at + 1]] then ids[#ids + 1] = laid[at] end
end
for _, id in ipairs(ids) do redis.call('HDEL', P .. ':ended', id) end
return ids
