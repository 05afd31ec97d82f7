-- Gives up a lease and the right to fill.
-- KEYS: L R. ARGV: token, hold ms, or 0 to wake one process, or -1 to wake all; payload.
-- Replies 1 done, 0 neither was the asker's.
local L, R = KEYS[1], KEYS[2]
local token, hold, payload = ARGV[1], tonumber(ARGV[2]), ARGV[3]

-- Tells who is noted in a field of R; returns how many have heard it: of plain messages on a
-- cluster, those on this node only.
local function wake(field)
  local kind, inbox = field:sub(1, 2), field:sub(3)
  if kind == 'w:' then return redis.pcall('publish', inbox, payload) end
  return redis.pcall('spublish', inbox, payload)
end

local right = redis.call('hget', R, 't') == token
local mine = redis.pcall('get', L) == token
if not right and not mine then return 0 end

-- First what frees: a server out of memory refuses what needs memory only as
-- long as the script has not written.
if right then redis.call('hdel', R, 't') end
if mine then redis.call('del', L) end
if hold > 0 then redis.pcall('set', L, 'hold', 'NX', 'PX', hold) end

for _, field in ipairs(redis.call('hkeys', R)) do
  if field:sub(2, 2) == ':' then
    -- Once woken it registers again, if it has to wait on.
    redis.call('hdel', R, field)
    local heard = wake(field)
    -- One is enough to compute next, if it is still there to hear it.
    if hold == 0 and type(heard) == 'number' and heard > 0 then break end
  end
end
-- Where no process waits nothing is left of a key that fails: the next grant is above this one by
-- the clock, and a late fill of this one is refused for its token.
local rest = 0
for _, field in ipairs(redis.call('hkeys', R)) do
  if field:sub(2, 2) == ':' then rest = rest + 1 end
end
if rest == 0 then redis.call('del', R) end
-- How long the hold lasts at most, by which others see that the clock was set back.
if hold > 0 and type(redis.pcall('hset', R, 'd', hold)) == 'number' and rest == 0 then
  redis.call('pexpire', R, hold)
end
return 1
