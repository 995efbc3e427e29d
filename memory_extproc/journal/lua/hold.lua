-- ARGV: holder, milliseconds, parts, whether it leaves. Takes and renews a fair share of the parts, releases the
-- rest, and returns the parts held, each with its token. A token grows with every change of holder.
local holder, parts, now = ARGV[1], tonumber(ARGV[3]), clock()
local till = string.format('%.0f', now + tonumber(ARGV[2]))
redis.call('ZREMRANGEBYSCORE', P .. ':replicas', '-inf', now)
if ARGV[4] == '1' then
  redis.call('ZREM', P .. ':replicas', holder)
else
  redis.call('ZADD', P .. ':replicas', till, holder)
end
local fair = 0
if ARGV[4] ~= '1' then fair = math.ceil(parts / redis.call('ZCARD', P .. ':replicas')) end
local held, mine, free = redis.call('HGETALL', P .. ':parts'), {}, {}
local by = {}
for at = 1, #held, 2 do by[held[at]] = held[at + 1] end
for number = 0, parts - 1 do
  local part = tostring(number)
  local until_, whose = string.match(by[part] or '0|', '^(%d+)|(.*)$')
  if whose == holder then
    mine[#mine + 1] = part
  elseif tonumber(until_) <= now then
    free[#free + 1] = part
  end
end
local kept = {}
for at, part in ipairs(mine) do
  if at <= fair then
    redis.call('HSET', P .. ':parts', part, till .. '|' .. holder)
    kept[#kept + 1] = part
  else
    redis.call('HSET', P .. ':parts', part, '0|')
  end
end
for _, part in ipairs(free) do
  if #kept >= fair then break end
  redis.call('HSET', P .. ':tokens', part, grown(redis.call('HGET', P .. ':tokens', part)))
  redis.call('HSET', P .. ':parts', part, till .. '|' .. holder)
  kept[#kept + 1] = part
end
local rows = {}
for at, part in ipairs(kept) do rows[at] = {part, redis.call('HGET', P .. ':tokens', part)} end
return rows
