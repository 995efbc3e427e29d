-- KEYS: generation. ARGV: id, directory, the highest number seen. Advances the number only if the generation is
-- unchanged.
local id = redis.call('HGET', KEYS[1], 'id') or ''
local number = tonumber(redis.call('HGET', KEYS[1], ARGV[2]) or 0)
if id ~= '' and id == ARGV[1] and number >= tonumber(ARGV[3]) then
  number = redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
end
return {id, number}
