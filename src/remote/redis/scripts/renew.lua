-- Prolongs a lease.
-- KEYS: V L R. ARGV: token, lease ms, keep ms, version.
-- Replies 1 if it is still the asker's, 0 if it is lost.
local V, L, R = KEYS[1], KEYS[2], KEYS[3]
local token, lease, keep, version = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

-- As in acquire.lua: what R.s is compared with.
local function mark()
  local at = redis.pcall('getrange', V, 4, 19)
  if type(at) == 'table' then return '?' end
  if at == '' and redis.call('exists', V) == 1 then return '?' end
  return at
end

local r = redis.call('hmget', R, 't', 'f', 's')
-- A late copy of the acquire made a new grant after the old one was revoked:
-- this computation began before.
if r[1] == token and r[2] ~= version then return 0 end

local holder = redis.pcall('get', L)
if holder == token then
  redis.call('pexpire', L, lease)
  if not r[1] then
    redis.call('hset', R, 't', token, 'f', version, 's', mark())
  end
elseif holder or r[1] ~= token then
  return 0
else
  local stored = mark()
  if stored ~= '' and stored ~= r[3] then return 0 end
  redis.call('set', L, token, 'NX', 'PX', lease)
end

redis.call('hset', R, 'd', lease)
if redis.call('pttl', R) < keep then redis.call('pexpire', R, keep) end
return 1
