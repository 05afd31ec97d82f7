-- Reads where tags stand in the invalidation log.
-- KEYS: T, the tags. ARGV: 't' and a tag each.
-- Replies {epoch, last, everything, everything stale, dropped, positions, server}, or nothing
-- where there is no log. The position of a tag whose record was dropped is that of the last dropped
-- one of its part.
local T = KEYS[1]
local FLOORS = 2 ^ 52

local top = '(' .. string.format('%.0f', FLOORS)
local found = redis.pcall('zrevrangebyscore', T, top, '-inf', 'LIMIT', 0, 1, 'WITHSCORES')
if found.err or not found[1] then return false end
local epoch, by, all, stale, dropped =
  found[1]:match('^h:(%x+):([%x-]+):(%d+):(%d+):%d+:(%d+)$')
if not epoch then return false end

-- In one command for as many as Lua hands over at once.
local function scores(members)
  local found = {}
  for i = 1, #members, 1000 do
    local last = math.min(i + 999, #members)
    local some = redis.call('zmscore', T, unpack(members, i, last))
    for n = 1, #some do found[#found + 1] = tonumber(some[n] or 0) end
  end
  return found
end

local positions = scores(ARGV)
-- Where no record was dropped there are no floors.
if tonumber(dropped) > 0 then
  local parts = {}
  for i, tag in ipairs(ARGV) do parts[i] = 'f' .. redis.sha1hex(tag):sub(1, 3) end
  for i, floor in ipairs(scores(parts)) do
    positions[i] = math.max(positions[i], floor > 0 and floor - FLOORS or 0)
  end
end
local last = math.floor(tonumber(found[2]))
return {epoch, last, tonumber(all), tonumber(stale), tonumber(dropped), positions, by}
