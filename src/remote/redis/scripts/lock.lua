-- Takes a lock, as SET NX PX does; again with the same token if its first
-- reply was lost.
-- KEYS: the lock, its record (may be left out). ARGV: token, lease ms, inbox
-- or ''. Replies {1, fencing token} taken, or {0, ms left, 1 if the inbox is
-- told when the lock is given back, else 0} another's.
local name, record = KEYS[1], KEYS[2]
local token, lease, inbox = ARGV[1], tonumber(ARGV[2]), ARGV[3]

-- As in acquire.lua: what is no number counts as none.
local function number(digits)
  if not digits or #digits ~= 16 or digits:find('%D') then return 0 end
  local n = tonumber(digits)
  return n < 2 ^ 52 and n or 0
end

-- The record outlives the lease, for the case that the clock is set back.
local function keep()
  if redis.call('pttl', record) < lease + 60000 then
    redis.call('pexpire', record, lease + 60000)
  end
end

local time = redis.call('time')
local micros = time[1] * 1000000 + time[2]
local got = redis.call('set', name, token, 'NX', 'PX', ARGV[2])
local holder = got and token or redis.pcall('get', name)

-- Of another type, it is none of ours, and left alone.
local r = record and redis.pcall('hmget', record, 'n', 't', 'd') or {err = 'none'}

if holder == token then
  local fence = micros
  if not r.err then
    fence = math.max(micros, number(r[1]) + 1)
    if fence >= 2 ^ 52 then fence = micros end
    redis.call('hset', record, 'n', string.format('%016.0f', fence), 't', token, 'd', lease)
    keep()
  end
  return {1, fence}
end

local left = redis.call('pttl', name)
-- More is left than its holder has asked for: the clock was set back.
local length = not r.err and holder == r[2] and tonumber(r[3] or nil)
if length and left > length then
  redis.call('pexpire', name, length)
  left = length
end
-- Only a holder that has written the record tells of the end.
if inbox == '' or r.err or holder ~= r[2] then return {0, left, 0} end
-- Out of memory, nothing is noted, and the asker looks again by itself.
local noted = redis.pcall('hset', record, 'w:' .. inbox, 1)
if type(noted) == 'table' then return {0, left, 0} end
keep()
return {0, left, 1}
