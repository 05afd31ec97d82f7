-- Prolongs a lock, and never shortens it: who extends by hand and who does so
-- regularly may be two.
-- KEYS: the lock. ARGV: token, lease ms. Replies 1 still the asker's, 0 lost.
local name, token, lease = KEYS[1], ARGV[1], tonumber(ARGV[2])

if redis.pcall('get', name) ~= token then return 0 end
if redis.call('pttl', name) < lease then redis.call('pexpire', name, lease) end
return 1
