-- The journal's atomic Redis operations as Lua scripts, each behind these tools. All keys begin with KEYS[1] and lie on the same node.
--
--     PREFIX:seq          the last place assigned; places and tokens grow with the clock, so that a server that lost
--                         its data gives none a second time
--     PREFIX:stream:PART  unlearned turns of the part's owners, in order; an entry's id is PLACE-0
--     PREFIX:turn:ID      a turn: its text, place and stage
--     PREFIX:owner:KEY    the owner's turns in any state, by place
--     PREFIX:learned      learned turns by time; PREFIX:dead, PREFIX:died: dead letters by place and by time
--     PREFIX:ended        last turns of ended sessions, reported by another replica than the holder, with their parts
--     PREFIX:parts        the holder, token and expiry of each part; PREFIX:tokens, PREFIX:replicas
--
-- Leases use the server's clock, so replicas need not agree about the time.

local P = KEYS[1]
local function turn(id) return P .. ':turn:' .. id end
local function stream(part) return P .. ':stream:' .. part end
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
-- Out of every list but its owner's.
local function leave(id)
  local is = redis.call('HMGET', turn(id), 'stage', 'part', 'place')
  redis.call('HDEL', P .. ':ended', id)
  if is[1] == '2' then
    redis.call('ZREM', P .. ':learned', id)
  elseif is[1] == '3' then
    redis.call('ZREM', P .. ':dead', id)
    redis.call('ZREM', P .. ':died', id)
  elseif is[1] then
    redis.call('XDEL', stream(is[2]), is[3] .. '-0')
  end
end
local function erase(id)
  local owner = redis.call('HGET', turn(id), 'owner')
  if not owner then return 0 end
  leave(id)
  redis.call('ZREM', P .. ':owner:' .. owner, id)
  return redis.call('DEL', turn(id))
end
-- In a shard: above the number in steps of 16 with the shard behind them, so that no two shards give the same.
local shard = tonumber(string.match(P, '{journal:(%d+)}$'))
local function grown(number)
  if not shard then return string.format('%.0f', math.max(tonumber(number or 0) + 1, clock())) end
  local time = redis.call('TIME')
  local ticks = math.max(math.floor(tonumber(number or 0) / 16) + 1, time[1] * 64000 + math.floor(time[2] * 0.064))
  return string.format('%.0f', ticks * 16 + shard)
end
-- Waiting, at a new place at the end.
local function queue(id, part, owner)
  local place = grown(redis.call('GET', P .. ':seq'))
  redis.call('SET', P .. ':seq', place)
  redis.call('XADD', stream(part), place .. '-0', 'id', id)
  redis.call('ZADD', P .. ':owner:' .. owner, place, id)
  redis.call('HSET', turn(id), 'place', place, 'stage', 0, 'attempts', 0, 'reason', '', 'came', clock())
  return place
end
-- As if it had come long ago: nobody is remembering it, so whoever holds it takes it up at once.
local function again(id)
  leave(id)
  local is = redis.call('HMGET', turn(id), 'part', 'owner')
  queue(id, is[1], is[2])
  redis.call('HSET', turn(id), 'came', 0)
end
local function row(id)
  return redis.call('HMGET', turn(id), 'place', 'stage', 'replaced', 'attempts', 'last', 'turn')
end
local function waiting(parts)
  local count = 0
  for part = 0, parts - 1 do count = count + redis.call('XLEN', stream(part)) end
  return count
end
-- Whether *token* is the latest given for this part: an older holder's work is another's by now.
local function current(part, token)
  return redis.call('HGET', P .. ':tokens', part) == token
end
local function dead(id, place, reason, ended, most)
  leave(id)
  redis.call('HSET', turn(id), 'stage', 3, 'reason', reason, 'ended', ended)
  redis.call('ZADD', P .. ':dead', place, id)
  redis.call('ZADD', P .. ':died', ended, id)
  while redis.call('ZCARD', P .. ':died') > most do
    erase(redis.call('ZRANGE', P .. ':died', 0, 0)[1])
  end
end
