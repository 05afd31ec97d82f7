-- Stores a value if its leader still has the right to.
-- KEYS: V L R. ARGV: token, version, ttl ms, envelope, payload.
-- Replies 1 stored, 2 stored by an earlier try, 0 refused.
local V, L, R = KEYS[1], KEYS[2], KEYS[3]
local token, version, ttl, envelope, payload = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

-- As in acquire.lua: what R.s is compared with.
local function mark()
  local at = redis.pcall('getrange', V, 4, 19)
  if type(at) == 'table' then return '?' end
  if at == '' and redis.call('exists', V) == 1 then return '?' end
  return at
end

-- Tells who is noted in a field of R, if anybody is; returns how many have heard it.
local function wake(field)
  local kind, inbox = field:sub(1, 2), field:sub(3)
  if kind == 'w:' then return redis.pcall('publish', inbox, payload) end
  if kind == 's:' then return redis.pcall('spublish', inbox, payload) end
end

-- A message is a hint: a user without the right to publish has filled anyway.
local function wake_and_forget()
  for _, field in ipairs(redis.call('hkeys', R)) do wake(field) end
  redis.call('del', R)
end

local stored = mark()
if stored == version then return 2 end

local r = redis.call('hmget', R, 't', 'f', 's')
local mine = redis.pcall('get', L) == token
local granted = r[1] == token and r[2] == version
local untouched = stored == '' or stored == r[3]
-- A lease that merely ran out does not end the right; R lost leaves the lock
-- as the only witness.
if (granted and untouched) or (mine and not r[1]) then
  redis.call('set', V, envelope, 'PX', ttl)
  if mine then redis.call('del', L) end
  wake_and_forget()
  return 1
end

if mine then redis.call('del', L) end
-- Somebody who knows only the lock has written: there is something to read.
if granted then wake_and_forget() end
return 0
