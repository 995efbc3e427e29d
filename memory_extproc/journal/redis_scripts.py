"""The journal's atomic Redis operations as Lua scripts. All keys begin with KEYS[1] and lie on the same node.

    PREFIX:seq          the last place assigned; places and tokens grow with the clock, so that a server that lost
                        its data gives none a second time
    PREFIX:stream:PART  unlearned turns of the part's owners, in order; an entry's id is PLACE-0
    PREFIX:turn:ID      a turn: its text, place and stage
    PREFIX:owner:KEY    the owner's turns in any state, by place
    PREFIX:learned      learned turns by time; PREFIX:dead, PREFIX:died: dead letters by place and by time
    PREFIX:ended        last turns of ended sessions, reported by another replica than the holder, with their parts
    PREFIX:parts        the holder, token and expiry of each part; PREFIX:tokens, PREFIX:replicas

Leases use the server's clock, so replicas need not agree about the time."""

from __future__ import annotations

from typing import Final

_TOOLS = """
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
"""


def _script(body: str) -> str:
    return _TOOLS + body


# ARGV: id, owner, part, session, at, answer, last, words, parts, most, nonce. The nonce distinguishes our own
# retry, after a connection was cut, from another client's. A turn that is there already is written once more, for
# WAIT to have a write of this connection to wait for.
APPEND: Final = _script("""
local id, owner, part, answer = ARGV[1], ARGV[2], ARGV[3], ARGV[6]
local is = redis.call('HMGET', turn(id), 'stage', 'answer', 'nonce', 'place')
local stage = tonumber(is[1])
if stage and (is[3] == ARGV[11] or (stage ~= 3 and is[2] == answer)) then
  redis.call('HSET', turn(id), 'nonce', is[3])
  local count = waiting(ARGV[9])
  if is[3] == ARGV[11] then return {'journalled', is[4], count} end
  return {'duplicate', 0, count}
end
local count = waiting(ARGV[9])
if not stage or stage >= 2 then
  if count >= tonumber(ARGV[10]) then return {'journal_full', 0, count} end
  count = count + 1
end
if stage then leave(id) end
redis.call('HSET', turn(id), 'owner', owner, 'part', part, 'session', ARGV[4], 'at', ARGV[5], 'answer', answer,
  'last', ARGV[7], 'turn', ARGV[8], 'nonce', ARGV[11], 'ended', 0, 'replaced', stage and 1 or 0)
return {'journalled', queue(id, part, owner), count}
""")

# ARGV: limit, then part and place pairs: entries of these parts after these places, oldest first.
BEHIND: Final = _script("""
local limit, found, now = tonumber(ARGV[1]), {}, clock()
for at = 2, #ARGV, 2 do
  local from = string.format('%.0f-0', tonumber(ARGV[at + 1]) + 1)
  for _, entry in ipairs(redis.call('XRANGE', stream(ARGV[at]), from, '+', 'COUNT', limit)) do
    found[#found + 1] = {tonumber(string.match(entry[1], '%d+')), entry[2][2], ARGV[at]}
  end
end
table.sort(found, function(one, other) return one[1] < other[1] end)
local rows = {}
for at = 1, math.min(limit, #found) do
  local is = redis.call('HMGET', turn(found[at][2]), 'stage', 'came')
  rows[at] = {found[at][2], found[at][1], found[at][3], is[1], string.format('%.0f', now - tonumber(is[2]))}
end
return rows
""")

# ARGV: ids. The stage of each, and its age in milliseconds.
LOOK: Final = _script("""
local rows, now = {}, clock()
for at, id in ipairs(ARGV) do
  local is = redis.call('HMGET', turn(id), 'place', 'stage', 'came')
  if is[1] then rows[#rows + 1] = {id, is[1], is[2], string.format('%.0f', now - tonumber(is[3]))} end
end
return rows
""")

# ARGV: ids
GET: Final = _script("""
local rows = {}
for _, id in ipairs(ARGV) do
  local is = row(id)
  if is[1] then rows[#rows + 1] = {id, unpack(is)} end
end
return rows
""")

# ARGV: when, then id and place pairs. If an older answer's messages were stored after a newer answer's, the turn is
# stored once more, so that the newer messages remain.
STORED: Final = _script("""
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
""")

# ARGV: when, then id, place, part, token. Returns how many are learned by it.
LEARNED: Final = _script("""
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
""")

# ARGV: when, id, place, part, token, reason, dead, most
FAILED: Final = _script("""
local id, is = ARGV[2], redis.call('HMGET', turn(ARGV[2]), 'place', 'stage')
if is[1] ~= ARGV[3] or tonumber(is[2]) > 1 then return 0 end
if is[2] == '1' and not current(ARGV[4], ARGV[5]) then return 0 end
redis.call('HINCRBY', turn(id), 'attempts', 1)
redis.call('HSET', turn(id), 'reason', ARGV[6], 'ended', ARGV[1])
if ARGV[7] == '1' then dead(id, is[1], ARGV[6], ARGV[1], tonumber(ARGV[8])) end
return 1
""")

# ARGV: when, most, ids of unreadable turns
UNREADABLE: Final = _script("""
for at = 3, #ARGV do
  local is = redis.call('HMGET', turn(ARGV[at]), 'place', 'stage')
  if is[1] and tonumber(is[2]) < 2 then dead(ARGV[at], is[1], 'unreadable', ARGV[1], tonumber(ARGV[2])) end
end
return 1
""")

# ARGV: before, limit
ERASE_LEARNED: Final = _script("""
local ids = redis.call('ZRANGEBYSCORE', P .. ':learned', '-inf', '(' .. ARGV[1], 'LIMIT', 0, ARGV[2])
for _, id in ipairs(ids) do erase(id) end
return #ids
""")

# ARGV: owner, limit, then ids; without ids: all
ERASE: Final = _script("""
local ids, erased = {unpack(ARGV, 3)}, 0
if #ids == 0 then ids = redis.call('ZRANGE', P .. ':owner:' .. ARGV[1], 0, ARGV[2] - 1) end
for _, id in ipairs(ids) do
  if redis.call('HGET', turn(id), 'owner') == ARGV[1] then erased = erased + erase(id) end
end
return erased
""")

# ARGV: owner, after, limit
OF_OWNER: Final = _script("""
local ids = redis.call('ZRANGEBYSCORE', P .. ':owner:' .. ARGV[1], '(' .. ARGV[2], '+inf', 'LIMIT', 0, ARGV[3])
local rows = {}
for at, id in ipairs(ids) do rows[at] = {id, unpack(row(id))} end
return rows
""")

# ARGV: after, limit
DEAD: Final = _script("""
local ids = redis.call('ZRANGEBYSCORE', P .. ':dead', '(' .. ARGV[1], '+inf', 'LIMIT', 0, ARGV[2])
local rows = {}
for at, id in ipairs(ids) do
  rows[at] = {id, unpack(redis.call('HMGET', turn(id), 'place', 'owner', 'reason', 'attempts', 'at', 'ended'))}
end
return rows
""")

# ARGV: ids
RETRY: Final = _script("""
local ids, count = {}, 0
for _, id in ipairs(ARGV) do
  local is = redis.call('HMGET', turn(id), 'stage', 'place')
  if is[1] == '3' then ids[#ids + 1] = {tonumber(is[2]), id} end
end
table.sort(ids, function(one, other) return one[1] < other[1] end)
for _, one in ipairs(ids) do again(one[2]) end
return #ids
""")

# ARGV: owner, session, whether the holder asks. Another holder may have begun these turns: the last turn of each
# session is queued for it.
END: Final = _script("""
local last = {}
for _, id in ipairs(redis.call('ZRANGE', P .. ':owner:' .. ARGV[1], 0, -1)) do
  local is = redis.call('HMGET', turn(id), 'stage', 'session', 'part')
  if tonumber(is[1]) < 2 and (ARGV[2] == '' or is[2] == ARGV[2]) then
    redis.call('HSET', turn(id), 'last', 1)
    if is[1] == '1' then last[is[2]] = {id, is[3]} end
  end
end
if ARGV[3] ~= '1' then
  for _, one in pairs(last) do redis.call('HSET', P .. ':ended', one[1], one[2]) end
end
return 1
""")

# ARGV: parts. The turns queued by END for these parts, each returned once.
ENDED: Final = _script("""
local held, ids = {}, {}
for _, part in ipairs(ARGV) do held[part] = true end
local laid = redis.call('HGETALL', P .. ':ended')
for at = 1, #laid, 2 do
  if held[laid[at + 1]] then ids[#ids + 1] = laid[at] end
end
for _, id in ipairs(ids) do redis.call('HDEL', P .. ':ended', id) end
return ids
""")

# ARGV: parts
DEPTH: Final = _script("""
local first = nil
for part = 0, ARGV[1] - 1 do
  local entry = redis.call('XRANGE', stream(part), '-', '+', 'COUNT', 1)[1]
  if entry then
    local place = tonumber(string.match(entry[1], '%d+'))
    if not first or place < first[1] then first = {place, entry[2][2]} end
  end
end
local oldest = first and redis.call('HGET', turn(first[2]), 'at') or ''
return {waiting(ARGV[1]), redis.call('ZCARD', P .. ':dead'), oldest}
""")

# ARGV: holder, milliseconds, parts, whether it leaves. Takes and renews a fair share of the parts, releases the
# rest, and returns the parts held, each with its token. A token grows with every change of holder.
HOLD: Final = _script("""
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
""")

# Each live replica and its number of parts.
SHARES: Final = _script("""
local now, shares, rows = clock(), {}, {}
for _, holder in ipairs(redis.call('ZRANGEBYSCORE', P .. ':replicas', now, '+inf')) do shares[holder] = 0 end
local held = redis.call('HGETALL', P .. ':parts')
for at = 2, #held, 2 do
  local until_, holder = string.match(held[at], '^(%d+)|(.*)$')
  if tonumber(until_) > now and shares[holder] then shares[holder] = shares[holder] + 1 end
end
for holder, count in pairs(shares) do rows[#rows + 1] = {holder, count} end
return rows
""")
