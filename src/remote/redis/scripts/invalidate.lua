-- Removes a value, whoever's lock, and the right to fill.
-- KEYS: V L R. ARGV: broadcast channel or '', payload.
-- Replies {value was there, right or lock revoked, version}: versions that are granted later are not
-- lower, unless the clock of the server is set back.
local V, L, R = KEYS[1], KEYS[2], KEYS[3]
local channel, payload = ARGV[1], ARGV[2]

-- Tells who is noted in a field of R, if anybody is; returns how many have heard it.
local function wake(field)
  local kind, inbox = field:sub(1, 2), field:sub(3)
  if kind == 'w:' then return redis.pcall('publish', inbox, payload) end
  if kind == 's:' then return redis.pcall('spublish', inbox, payload) end
end

-- Of R only the fields are needed, and it goes even if it is not ours.
local fields = redis.pcall('hkeys', R)
local right = not fields.err and redis.call('hexists', R, 't') or 0
local value = redis.call('del', V)
local lock = redis.call('del', L)
redis.call('del', R)

for _, field in ipairs(fields) do wake(field) end
-- Last, so that a user who may not publish is told, and has invalidated.
if channel ~= '' then redis.call('publish', channel, payload) end
local time = redis.call('time')
return {value, math.max(right, lock), string.format('%016.0f', time[1] * 1000000 + time[2])}
