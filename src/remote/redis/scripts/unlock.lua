-- Gives a lock back, if it is still the asker's, and tells those who wait.
-- KEYS: the lock, its record (may be left out). ARGV: token.
-- Replies 1 given back, now or by an earlier try whose reply was lost, 0 lost before.
local name, record = KEYS[1], KEYS[2]

if redis.pcall('get', name) ~= ARGV[1] then
  if record and redis.pcall('hget', record, 'u') == ARGV[1] then return 1 end
  return 0
end
redis.call('del', name)
if not record then return 1 end
-- Where the record is none of ours, or gone, nothing is noted.
if redis.pcall('hget', record, 't') == ARGV[1] then redis.pcall('hset', record, 'u', ARGV[1]) end

for _, field in ipairs(redis.pcall('hkeys', record)) do
  if field:sub(1, 2) == 'w:' then
    -- Once woken it registers again, if it has to wait on.
    redis.call('hdel', record, field)
    redis.pcall('publish', field:sub(3), name)
  end
end
return 1
