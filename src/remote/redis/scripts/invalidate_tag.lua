-- Writes the server's time into the invalidation log.
-- KEYS: the log. ARGV: broadcast channel, head of the payload, tags...
-- Replies now in ms.
local channel, head = ARGV[1], ARGV[2]

local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local score = string.format('%.0f', now)

local message = {head, string.format('%016.0f', now)}
for i = 3, #ARGV do
  -- GT: an entry that was dead stays dead if the clock was set back.
  redis.call('zadd', KEYS[1], 'GT', score, ARGV[i])
  message[#message + 1] = struct.pack('>I4', #ARGV[i]) .. ARGV[i]
end
redis.call('publish', channel, table.concat(message))
return now
