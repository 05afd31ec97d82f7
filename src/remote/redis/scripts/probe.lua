-- Reads the server's clock, where it takes writes: a server that only reads (a replica, or one
-- without memory) is of no use to a cache that must lock. Tells no process.
-- KEYS: a key of no meaning. Replies now in ms.
redis.call('set', KEYS[1], '', 'PX', 1000)
local time = redis.call('time')
return time[1] * 1000 + math.floor(time[2] / 1000)
