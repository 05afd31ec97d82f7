-- Reads the server's clock, where it takes writes and messages: a server that
-- only reads (a replica, or one without memory) is of no use to a cache that
-- must lock, and one where this user may not publish of none to a cache that
-- must tell others what it invalidates.
-- KEYS: a key of no meaning. ARGV: the broadcast channel, on which nobody
-- understands an empty message. Replies now in ms.
redis.call('set', KEYS[1], '', 'PX', 1000)
redis.call('publish', ARGV[1], '')
local time = redis.call('time')
return time[1] * 1000 + math.floor(time[2] / 1000)
