-- All keys share a hash tag: a job and its marks are written atomically. KEYS: jobs, order, counter, shut jobs of
-- the subject, cuts, items. ARGV: id, job, shut, open, cut, at, whether it is a copy, items... A copy has no job (an
-- empty id), or a job that replaces a less advanced job. No write replaces a more advanced job: a write that its
-- sender gave up on may arrive when the job is long complete.
local writes = ARGV[1] ~= ''
if writes then
  local there = redis.call('HGET', KEYS[1], ARGV[1])
  if there then
    local kept = cjson.decode(there)
    local came = (kept[4] and 0 or 2) + (kept[3] and 0 or 1)
    local comes = (ARGV[4] == '1' and 0 or 2) + (ARGV[3] == '1' and 0 or 1)
    writes = came < comes or (came == comes and ARGV[7] ~= '1')
  end
end
if writes then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  if ARGV[4] == '1' then
    if not redis.call('ZSCORE', KEYS[2], ARGV[1]) then
      redis.call('ZADD', KEYS[2], redis.call('INCR', KEYS[3]), ARGV[1])
    end
  else
    redis.call('ZREM', KEYS[2], ARGV[1])
  end
  if ARGV[3] == '1' then redis.call('SADD', KEYS[4], ARGV[1]) else redis.call('SREM', KEYS[4], ARGV[1]) end
end
if ARGV[5] ~= '' then redis.call('SADD', KEYS[5], ARGV[5]) end
for n = 8, #ARGV do
  local known = redis.call('HGET', KEYS[6], ARGV[n])
  if not known or tonumber(known) < tonumber(ARGV[6]) then redis.call('HSET', KEYS[6], ARGV[n], ARGV[6]) end
end
return 1
