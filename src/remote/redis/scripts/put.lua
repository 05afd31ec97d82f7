-- Stores a value above everything seen; ends the lock and the right to fill.
-- KEYS: V L R. ARGV: ttl ms, envelope, broadcast channel or '', payload.
-- Replies {now ms, version}. Out of memory, it acts as an invalidation (the old
-- value is known to be wrong) and replies with that error.
local V, L, R = KEYS[1], KEYS[2], KEYS[3]
local ttl, envelope, channel, payload = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

-- As in acquire.lua: what is no version counts as none.
local function number(digits)
  if type(digits) ~= 'string' or #digits ~= 16 or digits:find('%D') then return 0 end
  local n = tonumber(digits)
  return n < 2 ^ 52 and n or 0
end

-- Tells who is noted in a field of R, if anybody is; returns how many have heard it.
local function wake(field)
  local kind, inbox = field:sub(1, 2), field:sub(3)
  if kind == 'w:' then return redis.pcall('publish', inbox, payload) end
  if kind == 's:' then return redis.pcall('spublish', inbox, payload) end
end

local time = redis.call('time')
local micros = time[1] * 1000000 + time[2]

local stored = number(redis.pcall('getrange', V, 4, 19))
local granted = number(redis.pcall('hget', R, 'f'))
local next = math.max(micros, stored + 1, granted + 1)
if next >= 2 ^ 52 then next = micros end
local version = string.format('%016.0f', next)

-- The first write: a later one would be let through when memory is out.
local set = redis.pcall('set', V, envelope:sub(1, 4) .. version .. envelope:sub(21), 'PX', ttl)
if set.err then redis.call('del', V) end

local fields = redis.pcall('hkeys', R)
redis.call('del', L, R)
for _, field in ipairs(fields) do wake(field) end
-- Last, so that a user who may not publish is told, and has stored.
if channel ~= '' then redis.call('publish', channel, payload) end
if set.err then return set end
return {math.floor(micros / 1000), version}
