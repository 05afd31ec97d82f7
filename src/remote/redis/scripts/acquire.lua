-- Asks for the lease, looking at the value a second time in the same step.
-- KEYS: V L R. ARGV: token, lease ms, keep ms, inbox or '', seen version or '',
-- most bytes of a value (may be left out: then any), 's' if the inbox is a sharded channel.
-- Replies {'H', now, value}, {'A', now, version, left}, {'L', now, left, waiting processes, version of
-- the holder or ''} or {'B', now, left}; all times in ms.
local V, L, R = KEYS[1], KEYS[2], KEYS[3]
local token, lease, keep = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local inbox, seen, most, kind = ARGV[4], ARGV[5], ARGV[6], ARGV[7]

-- From 2^52 on digits get lost in Lua's numbers: such a version would never
-- grow again, so it counts as none.
local function number(digits)
  if not digits or #digits ~= 16 or digits:find('%D') then return 0 end
  local n = tonumber(digits)
  return n < 2 ^ 52 and n or 0
end

-- The place of the version as it is, to see whether V was changed: '' if V is
-- gone, '?' if it has another type (which must not make this fail) or is empty.
local function mark()
  local at = redis.pcall('getrange', V, 4, 19)
  if type(at) == 'table' then return '?' end
  if at == '' and redis.call('exists', V) == 1 then return '?' end
  return at
end

-- A waiter may want R for less long than the holder does.
local function prolong()
  if redis.call('pttl', R) < keep then redis.call('pexpire', R, keep) end
end

local time = redis.call('time')
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)

local stored = mark()
local version = number(stored)
-- What is too large for the asker is not sent: it would be thrown away.
local fits = version > 0 and (not most or redis.call('getrange', V, most, most) == '')
if fits and stored ~= seen then
  return {'H', now, redis.call('get', V)}
end

local got = redis.call('set', L, token, 'NX', 'PX', lease)
local holder = got and token or redis.pcall('get', L)
local r = redis.pcall('hmget', R, 't', 'f', 's', 'd')
if r.err then
  -- Not ours, whatever it is; it would keep this key from ever being filled.
  redis.call('del', R)
  r = {}
end

if holder == token then
  local granted = r[2]
  if r[1] ~= token then
    local next = math.max(micros, version + 1, number(r[2]) + 1)
    if next >= 2 ^ 52 then next = micros end
    granted = string.format('%016.0f', next)
    redis.call('hset', R, 't', token, 'f', granted, 's', stored, 'd', lease)
  elseif got then
    redis.call('hset', R, 'd', lease)
  end
  prolong()
  return {'A', now, granted, redis.call('pttl', L)}
end

local left = redis.call('pttl', L)
-- A lock of others may have no end: then it is asked for again and again.
if left < 0 then left = lease end
local length = tonumber(r[4] or nil)
if holder == 'hold' then
  -- The server's clock was set back.
  if length and left > length then
    redis.call('pexpire', L, length)
    left = length
  end
  return {'B', now, left}
end

if inbox ~= '' then
  redis.call('hset', R, (kind == 's' and 's:' or 'w:') .. inbox, 1)
  prolong()
end
-- More is left than anybody asked for: the server's clock was set back. Only
-- of a lock of ours is known how long it was meant to last.
if length and holder == r[1] and left > lease and left > length then
  redis.call('pexpire', L, length)
  left = length
end
-- All fields but the four of the grant. Not read one by one: thousands may wait, and each asks.
local waiting = redis.call('hlen', R)
for field = 1, 4 do
  if r[field] then waiting = waiting - 1 end
end
return {'L', now, left, waiting, r[2] or ''}
