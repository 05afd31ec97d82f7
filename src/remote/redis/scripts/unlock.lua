-- Gives a lock back, if it is still the asker's.
-- KEYS: the lock. ARGV: token. Replies 1 given back, 0 lost before.
if redis.pcall('get', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('del', KEYS[1])
