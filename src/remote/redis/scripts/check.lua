-- Tries every command that the other scripts send.
-- KEYS: three of one slot, of no meaning. ARGV: a channel, and the keys where the user may not
-- use them: then each command is refused for its own right, or for the keys.
-- Replies the refused commands, each followed by what the server said.
local a, b, c = KEYS[1] or ARGV[2], KEYS[2] or ARGV[3], KEYS[3] or ARGV[4]
local refused = {}
local function try(name, ...)
  local reply = redis.pcall(name, ...)
  if type(reply) == 'table' and reply.err then
    refused[#refused + 1] = name
    refused[#refused + 1] = reply.err
  end
end

try('set', a, 'x', 'NX', 'PX', 1000)
try('get', a)
try('getrange', a, 0, 1)
try('exists', a)
try('hset', b, 'f', 'x', 'g', 'y')
try('hget', b, 'f')
try('hmget', b, 'f', 'g')
try('hkeys', b)
try('hlen', b)
try('hexists', b, 'f')
try('hdel', b, 'f')
try('pexpire', b, 1000)
try('pttl', b)
try('zadd', c, 1, 'x')
try('zmscore', c, 'x')
try('zcard', c)
try('zcount', c, 0, 1)
try('zrange', c, 0, 0)
try('zrevrange', c, 0, 0)
try('zrangebyscore', c, 0, 1)
try('zrevrangebyscore', c, 1, 0)
try('zremrangebyrank', c, 0, 0)
try('zrem', c, 'x')
try('info', 'replication')
try('del', a, b, c)
try('time')
try('publish', ARGV[1], '')
return refused
