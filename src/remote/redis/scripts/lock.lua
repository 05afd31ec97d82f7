-- Takes a lock, as SET NX PX does; again with the same token if its first
-- reply was lost.
-- KEYS: the lock. ARGV: token, lease ms. Replies 1 taken, 0 another's.
local name, token, lease = KEYS[1], ARGV[1], ARGV[2]

if redis.call('set', name, token, 'NX', 'PX', lease) then return 1 end
return redis.pcall('get', name) == token and 1 or 0
