-- ARGV: id, owner, part, session, at, answer, last, words, parts, most, nonce. The nonce distinguishes our own
-- retry, after a connection was cut, from another client's. A turn that is there already is written once more, for
-- WAIT to have a write of this connection to wait for.
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
