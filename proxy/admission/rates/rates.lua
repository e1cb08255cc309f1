-- The books of rates in Redis or Valkey: what window.py and memory.py do, in one
-- round trip, and nobody comes in between. Only counters, and only under names of accounts.
--
-- Each counter is a string "window current previous" that expires when it says nothing any more.
-- The requests that run are a sorted set of leases by when they end, unless they are renewed: those
-- of a proxy that was killed end by themselves.
--
-- ARGV[1] is what to do. ARGV[2] is the time in ticks of a tenth of a second; empty takes the time
-- of this server, so that all proxies go by one clock. Only tests bring their own.

local TICKS_PER_SECOND = 10
local CONCURRENCY_WAIT = 1 * TICKS_PER_SECOND
-- Of a counter. Windows have 9 digits, and amounts up to 15.
local MAX_BYTES = 50

local function now()
    if ARGV[2] ~= '' then
        return tonumber(ARGV[2])
    end
    local time = redis.call('TIME')
    return tonumber(time[1]) * TICKS_PER_SECOND
        + math.floor(tonumber(time[2]) * TICKS_PER_SECOND / 1000000)
end

-- Numbers are doubles: without an exponent, whatever their size.
local function text(number)
    return string.format('%.0f', number)
end

-- What a command says of a key; nil where that is something else than it ever is: somebody has
-- written to it, and what this account has used is not known. All else that goes wrong is an error.
local function ask(command, key, ...)
    local said = redis.pcall(command, key, ...)
    if type(said) == 'table' and said.err then
        if string.find(said.err, 'WRONGTYPE', 1, true) then
            return nil
        end
        return redis.call(command, key, ...)
    end
    return said
end

-- The three numbers of a counter: zeros of one that is not there, or not to be read.
local function read(key)
    local kept = ask('GET', key)
    if kept then
        local a, b, c = string.match(kept, '^(%d+) (%d+) (%d+)$')
        if a and #kept <= MAX_BYTES then
            return tonumber(a), tonumber(b), tonumber(c)
        end
    end
    return 0, 0, 0
end

-- Counter.turn
local function open(key, tick, length)
    local window, current, previous = read(key)
    local this = math.floor(tick / length)
    local left = length - tick % length
    if this == window - 1 then
        left = length
    elseif this ~= window then
        previous = (this == window + 1) and current or 0
        current = 0
        window = this
    end
    return {
        key = key,
        window = window,
        current = current,
        previous = previous,
        left = left,
        length = length,
    }
end

local function keep(counter)
    if counter.current == 0 and counter.previous == 0 then
        redis.call('DEL', counter.key)
        return
    end
    local value = string.format('%.0f %.0f %.0f', counter.window, counter.current, counter.previous)
    redis.call('SET', counter.key, value, 'EX', text(2 * counter.length / TICKS_PER_SECOND))
end

-- Counter.wait
local function wait_for(counter, limit, cost)
    local room = limit - cost - counter.current
    if room < 0 then
        local rest = math.floor(((limit - cost + 1) * counter.length - 1) / counter.current)
        return counter.left + counter.length - rest
    end
    if counter.previous * counter.left < (room + 1) * counter.length then
        return 0
    end
    return counter.left - math.floor(((room + 1) * counter.length - 1) / counter.previous)
end

-- Counter.reading, its two numbers that are not kept
local function remaining(counter, limit)
    local used = counter.current + math.floor(counter.previous * counter.left / counter.length)
    return math.max(0, limit - used)
end

local function reset(counter)
    if counter.current > 0 then
        return counter.left + counter.length
    end
    return (counter.previous > 0) and counter.left or 0
end

-- Counter.settle
local function settle(counter, charged, difference)
    if difference > 0 then
        counter.current = counter.current + difference
    elseif charged == counter.window then
        counter.current = math.max(0, counter.current + difference)
    elseif charged == counter.window - 1 then
        counter.previous = math.max(0, counter.previous + difference)
    end
end

-- A counter of KEYS, and the second of its two numbers, which begin at ARGV[5].
local function each(position, tick)
    local at = 2 * position + 3
    return open(KEYS[position], tick, tonumber(ARGV[at])), tonumber(ARGV[at + 1])
end

-- Leases, without those that have ended.
local function clear(key, tick)
    if not ask('ZREMRANGEBYSCORE', key, '-inf', text(tick)) then
        redis.call('DEL', key)
    end
end

local function hold(key, tick, lease_ticks, first)
    for position = first, #ARGV do
        redis.call('ZADD', key, text(tick + lease_ticks), ARGV[position])
    end
    redis.call('EXPIRE', key, text(math.ceil(lease_ticks / TICKS_PER_SECOND)))
end

local verbs = {}

-- MemoryBooks.take. KEYS: the counters, and the leases if concurrency is limited.
-- ARGV[3]: the amount. ARGV[4]: how many counters; for each its length and limit; then, if
-- concurrency is limited, how many may run, how long a lease is, and the name of this one.
-- Gives "refused_by wait", and for each counter "window remaining reset". refused_by counts from 0,
-- is the number of counters for concurrency, and -1 for a grant.
function verbs.take()
    local tick, amount = now(), tonumber(ARGV[3])
    local count = tonumber(ARGV[4])
    local refused_by, longest = -1, 0
    local counters = {}
    for position = 1, count do
        local counter, limit = each(position, tick)
        counter.limit = limit
        local wait = wait_for(counter, limit, amount)
        if wait > longest then
            refused_by, longest = position - 1, wait
        end
        counters[position] = counter
    end
    local leases, at = KEYS[count + 1], 2 * count + 5
    if leases then
        clear(leases, tick)
        if redis.call('ZCARD', leases) >= tonumber(ARGV[at]) and longest < CONCURRENCY_WAIT then
            refused_by, longest = count, CONCURRENCY_WAIT
        end
    end
    if refused_by < 0 and leases then
        hold(leases, tick, tonumber(ARGV[at + 1]), at + 2)
    end
    local told = {text(refused_by), text(longest)}
    for _, counter in ipairs(counters) do
        if refused_by < 0 then
            counter.current = counter.current + amount
            keep(counter)
        end
        told[#told + 1] = text(counter.window)
        told[#told + 1] = text(remaining(counter, counter.limit))
        told[#told + 1] = text(reset(counter))
    end
    return table.concat(told, ' ')
end

-- MemoryBooks.settle. KEYS: as above.
-- ARGV[3]: what was used beyond the charge, or less as a number below zero. ARGV[4]: how many
-- counters; for each its length and the window charged; then the name of the lease, if there is one.
function verbs.settle()
    local tick, difference = now(), tonumber(ARGV[3])
    local count = tonumber(ARGV[4])
    for position = 1, count do
        local counter, charged = each(position, tick)
        settle(counter, charged, difference)
        keep(counter)
    end
    if KEYS[count + 1] then
        ask('ZREM', KEYS[count + 1], ARGV[#ARGV])
    end
    return ''
end

-- KEYS[1]: the leases of one account. ARGV[3]: how long a lease is; then the names of those that
-- still run, or of those that began while this server was away.
function verbs.renew()
    local tick = now()
    clear(KEYS[1], tick)
    hold(KEYS[1], tick, tonumber(ARGV[3]), 4)
    return ''
end

-- Whether this server would really take what it is told, with each command that there is above: a user
-- who lacks the right to one of them would be refused in some requests only, and nobody would be told.
-- KEYS[1]: a name of no account.
function verbs.probe()
    local key, at = KEYS[1], text(now())
    redis.call('SET', key, at, 'EX', '60')
    redis.call('GET', key)
    redis.call('DEL', key)
    redis.call('ZADD', key, at, 'probe')
    redis.call('EXPIRE', key, '60')
    redis.call('ZREMRANGEBYSCORE', key, '-inf', '0')
    redis.call('ZCARD', key)
    redis.call('ZREM', key, 'probe')
    return ''
end

return verbs[ARGV[1]]()
