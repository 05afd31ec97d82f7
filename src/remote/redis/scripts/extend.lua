-- Prolongs a lock, and never shortens it: who extends by hand and who does so
-- regularly may be two.
-- KEYS: the lock, its record (may be left out). ARGV: token, lease ms.
-- Replies 1 still the asker's, 0 lost.
local name, record = KEYS[1], KEYS[2]
local token, lease = ARGV[1], tonumber(ARGV[2])

if redis.pcall('get', name) ~= token then return 0 end
if redis.call('pttl', name) < lease then
  redis.call('pexpire', name, lease)
  -- How long it may last at most, by which others see that the clock was set back. Out of
  -- memory, that is not known any more.
  if record and redis.pcall('hget', record, 't') == token then
    local noted = redis.pcall('hset', record, 'd', lease)
    if type(noted) == 'table' then redis.call('hdel', record, 'd') end
  end
end
-- As in lock.lua; nothing where the record is gone.
if record and redis.call('pttl', record) < lease + 60000 then
  redis.call('pexpire', record, lease + 60000)
end
return 1
