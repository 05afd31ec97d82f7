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

local positions = {}
for i, tag in ipairs(ARGV) do
  local known = tonumber(redis.call('zscore', T, tag) or 0)
  local part = redis.call('zscore', T, 'f' .. redis.sha1hex(tag):sub(1, 3))
  positions[i] = math.max(known, part and tonumber(part) - FLOORS or 0)
end
local last = math.floor(tonumber(found[2]))
return {epoch, last, tonumber(all), tonumber(stale), tonumber(dropped), positions, by}
