-- Appends to the invalidation log, and returns what its caller has missed.
-- KEYS: T, the tags; K, the keys. ARGV: the epoch that a new log gets; epoch and position that
-- the caller has applied ('' and 0: none); channel; head of the message; most tags, most keys;
-- items: 't' and a tag, 'k' and a key, 'e' everything, 's' everything stale.
-- Replies {epoch, last, everything, everything stale, dropped, position before the items, tags
-- and keys that the caller has missed, each followed by its position, the server}.
--
-- T holds, by score: tags at their positions; the header at the last position and a half, so
-- that a reader of what is new gets it as well; the floors of dropped tags far above both.
local T, K = KEYS[1], KEYS[2]
local fresh, from_epoch, from = ARGV[1], ARGV[2], tonumber(ARGV[3])
local channel, head = ARGV[4], ARGV[5]
local most_tags, most_keys = tonumber(ARGV[6]), tonumber(ARGV[7])
local MOST_READ, FLOORS = 1000, 2 ^ 52
local FIRST_ITEM = 8

local function digits(n) return string.format('%.0f', n) end

-- The server that answers, in this life: after a restart or a failover it is another, and
-- items may be lost. A user without the right to ask is not told of failovers.
local function server()
  local function ask(section, field)
    local said = redis.pcall('info', section)
    return type(said) == 'string' and said:match(field .. ':(%x+)') or '0'
  end
  return ask('server', 'run_id') .. '-' .. ask('replication', 'master_replid')
end

local id = server()
local epoch, last, all, stale, last_key, dropped = fresh, 0, 0, 0, 0, 0
local is_good = false
local found = redis.pcall('zrevrangebyscore', T, '(' .. digits(FLOORS), '-inf', 'LIMIT', 0, 1, 'WITHSCORES')
if not found.err and found[1] then
  local e, by, a, s, k, d = found[1]:match('^h:(%x+):([%x-]+):(%d+):(%d+):(%d+):(%d+)$')
  local position = math.floor(tonumber(found[2]))
  local is_rolled_back = e == from_epoch and from > position
  if e and by == id and not is_rolled_back then
    is_good = true
    epoch, last = e, position
    all, stale, last_key, dropped = tonumber(a), tonumber(s), tonumber(k), tonumber(d)
  end
end
-- A write that needs no memory comes first: after it a full server lets the others through.
if is_good then redis.call('zrem', T, found[1]) else redis.call('del', T, K) end

-- The keys may be lost alone. Then who has not applied them has a gap.
if last_key > 0 then
  local top = redis.pcall('zrevrange', K, 0, 0, 'WITHSCORES')
  if top.err or tonumber(top[2] or 0) ~= last_key then
    redis.call('del', K)
    dropped, last_key = math.max(dropped, last_key), 0
  end
end

local tags, keys = {}, {}
if epoch == from_epoch and from < last then
  local after, to = '(' .. digits(from), '(' .. digits(FLOORS)
  tags = redis.call('zrangebyscore', T, after, to, 'WITHSCORES', 'LIMIT', 0, MOST_READ)
  keys = redis.call('zrangebyscore', K, after, to, 'WITHSCORES', 'LIMIT', 0, MOST_READ)
end

local previous = last
local message = {head, epoch, string.format('%016.0f', previous)}
for i = FIRST_ITEM, #ARGV do
  local item = ARGV[i]
  local kind = item:sub(1, 1)
  last = last + 1
  if kind == 't' then
    redis.call('zadd', T, digits(last), item)
  elseif kind == 'k' then
    redis.call('zadd', K, digits(last), item)
    last_key = last
  elseif kind == 'e' then
    all = last
  else
    stale = last
  end
  message[#message + 1] = struct.pack('>I4', #item) .. item
end

-- The oldest tags go first. One of them stands for the tags of its part from then on.
local excess = redis.call('zcount', T, '-inf', '(' .. digits(FLOORS)) - most_tags
if excess > 0 then
  local oldest = redis.call('zrange', T, 0, excess - 1, 'WITHSCORES')
  for i = 1, #oldest, 2 do
    local position = tonumber(oldest[i + 1])
    redis.call('zrem', T, oldest[i])
    redis.call('zadd', T, digits(FLOORS + position), 'f' .. redis.sha1hex(oldest[i]):sub(1, 3))
    dropped = math.max(dropped, position)
  end
end
excess = redis.call('zcard', K) - most_keys
if excess > 0 then
  local oldest = redis.call('zrange', K, excess - 1, excess - 1, 'WITHSCORES')
  redis.call('zremrangebyrank', K, 0, excess - 1)
  dropped = math.max(dropped, tonumber(oldest[2]))
end

local header = {'h', epoch, id, digits(all), digits(stale), digits(last_key), digits(dropped)}
redis.call('zadd', T, string.format('%.1f', last + 0.5), table.concat(header, ':'))
-- Last, so that a user who may not publish is told, and has announced.
if #ARGV >= FIRST_ITEM then redis.call('publish', channel, table.concat(message)) end
return {epoch, last, all, stale, dropped, previous, tags, keys, id}
