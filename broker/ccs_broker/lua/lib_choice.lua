-- Shared: which waiting job a claim takes. Needs lib_clock, lib_waiting, lib_leaving, lib_queue.
-- Sets are merged by their order, so that the first job that fits is the best over all queues. A queue is first looked
-- at as a whole; once its head is of a model that isn't served, or has no room, the lanes of those that are served. The
-- number of jobs looked at is bounded for each pool of memory, over all lanes together: what lies behind them is never
-- taken before them. A larger bound lets small jobs far behind fill the memory that better ones wait for. Lanes of a
-- pool in which enough was looked at are left out from then on, so that no number of its jobs hides those of others.
-- Hash fields of a job: passed (ms since when it was passed over for want of memory alone), holder (the worker that
-- keeps its memory free for it) and held (ms when it said so last).
local FLOOR_CREDIT_US, FLOOR_DEBT_US = 1000000, -5000000
local FLOOR_LOOK, HOLD_MS = 32, 5000
-- Classes below interactive can wait longer before others are held up for one of their jobs.
local RELAXED_HOLD = 15
-- A job that needs more than there is at all is left to other workers, if there are any, for so long. Then it may have
-- everything here: its need is an estimate, and who runs it can tell whether it fits.
local LAST_RESORT_MS = 30000
-- Jobs looked at over all pools, as a multiple of those of one pool.
local ALL_POOLS = 8
-- The fields of WAITING, then more.
local LOOKED = {'queue', 'model', 'score', 'low', 'relegated', 'rank', 'tag', 'cost_us', 'tenant', 'sub',
  'expire', 'links', 'sizes', 'passed', 'holder', 'held', 'attempt', 'start'}
local BY_SCORE = {whole = 'ccs:waiting:', lane = 'ccs:lane:'}
local BY_AGE = {whole = 'ccs:aged:', lane = 'ccs:aged:'}

-- Pools of memory: what is free of each, and what of that jobs of each rank may take; nil if memory is no bound.
local function pools_of(free, total, headroom)
  if free == '' then return nil end
  local pools, totals = {}, {}
  for part in string.gmatch(total, '%S+') do totals[#totals + 1] = tonumber(part) end
  for part in string.gmatch(free, '%S+') do
    local pool = {free = tonumber(part), total = totals[#pools + 1], by_rank = {}, share = {}, looked = 0}
    local rank = 0
    for share in string.gmatch(headroom, '%S+') do
      local kept = math.floor((1 - tonumber(share)) * pool.total + 0.5)
      pool.by_rank[rank], pool.share[rank] = pool.free - kept, pool.total - kept
      rank = rank + 1
    end
    pools[#pools + 1] = pool
  end
  return pools
end

-- True if a job's need is free for its rank. One that is larger than its rank's share may have what is kept as well:
-- it can only run where hardly anything else does.
local function fits(need, pool, rank)
  return need <= pool.by_rank[rank] or (need > pool.share[rank] and need <= pool.free)
end

-- What `needs` says of a model: ";model=" and then the number of a pool with five coefficients, or "-" if its jobs
-- can't be taken now. Nil if it says nothing.
local function need_of(needs, model)
  local _, from = string.find(needs, ';' .. model .. '=', 1, true)
  return from and string.match(needs, '^[^;]*', from + 1)
end

-- Bytes that a job of these sizes needs, and the number of the pool that it needs them of.
local function bytes_of(needs, model, sizes)
  local need = need_of(needs, model)
  if not need or need == '-' then return 0, 1 end
  local pool, coefficients, i = nil, {}, 1
  for part in string.gmatch(need, '%S+') do
    if pool then coefficients[#coefficients + 1] = tonumber(part) else pool = tonumber(part) end
  end
  local sum = coefficients[1] or 0
  for size in string.gmatch(sizes or '', '%S+') do
    i = i + 1
    sum = sum + (coefficients[i] or 0) * tonumber(size)
  end
  return math.ceil(sum), pool
end

local function cursor_over(set, at)
  return {set = set, queue = ARGV[at], needs = ARGV[at + 1], at_queue = at, kept = 0, at = 1}
end

-- Id and order of a cursor's next entry, or nil at its end: one is read at first, then some more.
local function head_of(cursor)
  if not cursor.rows or cursor.at > #cursor.rows then
    if cursor.last then return nil end
    local some = cursor.rows and 8 or 1
    cursor.rows = redis.call('ZRANGE', cursor.set, cursor.kept, cursor.kept + some - 1, 'WITHSCORES')
    cursor.at, cursor.last = 1, #cursor.rows < 2 * some
    if #cursor.rows == 0 then return nil end
  end
  return cursor.rows[cursor.at], tonumber(cursor.rows[cursor.at + 1])
end

-- The cursor whose entry comes first; equal ones by id, as within a set. Not of a pool that is spent.
local function first_of(cursors, is_spent)
  local best, best_id, best_order
  for _, cursor in ipairs(cursors) do
    local id, order
    if not (cursor.pool and is_spent(cursor.pool)) then id, order = head_of(cursor) end
    if id and (not best or order < best_order or (order == best_order and id < best_id)) then
      best, best_id, best_order = cursor, id, order
    end
  end
  return best, best_id
end

-- The job behind an entry, or nil where there is none (any more): then it leaves the waiting.
local function looked_at(cursor, id, bounds)
  cursor.at = cursor.at + 2
  local f = redis.call('HMGET', 'ccs:job:' .. id, unpack(LOOKED))
  if not f[1] then
    redis.call('ZREM', cursor.set, id)
    redis.call('ZREM', 'ccs:waiting:' .. cursor.queue, id)
    return nil
  end
  local job = waiting_of(f)
  local expire, links, sizes = tonumber(f[11]), f[12], f[13]
  if not links and expire <= bounds.now_ms then
    dequeue(id, job, bounds.ticket)
    expire_waiting(id, bounds.now_ms, bounds.ttl)
    return nil
  end
  cursor.kept = cursor.kept + 1
  job.id, job.links, job.passed, job.holder, job.held = id, links, tonumber(f[14]), f[15], tonumber(f[16])
  job.attempt, job.started = tonumber(f[17]) or 0, f[18]
  job.served = bounds.models == '' or job.model == '' or string.find(bounds.models, ' ' .. job.model .. ' ', 1, true)
  if links then
    -- Only what follows the job in Celery is to be done: that needs neither memory nor model.
    job.need, job.pool = 0, 1
  else
    job.need, job.pool = bytes_of(cursor.needs, job.model, sizes)
    job.served = job.served and need_of(cursor.needs, job.model) ~= '-'
  end
  return job
end

-- Note since when a job is passed over.
local function note_passed(job, bounds)
  if job.passed then return end
  redis.call('HSET', 'ccs:job:' .. job.id, 'passed', whole(bounds.now_ms))
  job.passed = bounds.now_ms
end

-- True if all memory is enough for a job, or has to be.
local function fits_ever(job, pool, bounds)
  if job.need <= pool.total then return true end
  note_passed(job, bounds)
  if bounds.now_ms - job.passed < LAST_RESORT_MS
    and redis.call('ZCOUNT', 'ccs:workers', whole(bounds.now_ms), '+inf') > 1 then return false end
  job.need = pool.total
  return true
end

-- Note that a job is passed over; true if this worker keeps its memory free for it from now on.
local function hold(job, bounds)
  local key = 'ccs:job:' .. job.id
  note_passed(job, bounds)
  if bounds.now_ms - job.passed < bounds.reserve_ms * (rank_now(job) > 1 and RELAXED_HOLD or 1) then return false end
  if job.holder and job.holder ~= bounds.worker and bounds.now_ms - job.held < HOLD_MS then return false end
  redis.call('HSET', key, 'holder', bounds.worker, 'held', whole(bounds.now_ms))
  return true
end

-- True if a job only lacks memory: the short look, once the best of those in its pool is known.
local function lacks_memory(cursor, id, passing)
  local f = redis.call('HMGET', 'ccs:job:' .. id, 'sizes', 'rank', 'relegated', 'model', 'links')
  if not f[1] or f[5] then return false end
  local need, number = bytes_of(cursor.needs, f[4] or '', f[1])
  local pool = passing[number]
  if not pool or fits(need, pool, f[3] == '1' and 4 or tonumber(f[2])) then return false end
  pool.looked = pool.looked + 1
  cursor.at, cursor.kept = cursor.at + 2, cursor.kept + 1
  return true
end

-- The pool that all jobs of a model need memory of; nil if they need none, or it isn't known.
local function pool_of(needs, model)
  local number, coefficients = string.match(need_of(needs, model) or '', '^(%d+)(.*)')
  return number and string.find(coefficients, '[1-9]') and tonumber(number) or nil
end

-- Walk the waiting jobs that are served, in order, until `visit` says that it is enough, or in which pools those that
-- lack memory need no visit from now on.
local function walk(sets, most, bounds, visit)
  local cursors, passing = {}, nil
  for at = bounds.queues_at, #ARGV, 2 do cursors[#cursors + 1] = cursor_over(sets.whole .. ARGV[at], at) end
  for _ = 1, most do
    local cursor, id = first_of(cursors, bounds.is_spent)
    if not cursor then return end
    local passed = passing and cursor.lane and lacks_memory(cursor, id, passing)
    if passed and bounds.is_over() then return end
    local job = not passed and looked_at(cursor, id, bounds)
    if job and job.served then
      local enough = visit(job)
      if enough == true then return end
      passing = enough or passing
    end
    if job and not cursor.lane and bounds.models ~= '' then
      cursor.rows, cursor.last = {}, true
      for model in string.gmatch(bounds.models, '(%S*) ') do
        if need_of(cursor.needs, model) ~= '-' then
          local lane = cursor_over(sets.lane .. cursor.queue .. ':' .. model, cursor.at_queue)
          lane.lane, lane.pool = true, pool_of(cursor.needs, model)
          cursors[#cursors + 1] = lane
        end
      end
    end
  end
end

-- The best job that fits; the best that lacks nothing but memory, if that is better; and the pools whose memory is kept
-- free for one: that may then use all of it, and nothing worse is taken of it.
local function best_of(most, pools, bounds)
  local best, blocked, passing, held = nil, nil, {}, {}
  -- Nothing more can be taken of a pool: enough was looked at, or what is free is kept for a job.
  bounds.is_spent = function(number)
    return pools and pools[number] and (pools[number].looked >= most or held[number])
  end
  bounds.is_over = function()
    for number in ipairs(pools or {}) do
      if not bounds.is_spent(number) then return false end
    end
    return pools ~= nil
  end
  walk(BY_SCORE, ALL_POOLS * most, bounds, function(job)
    local pool = pools and pools[job.pool]
    if not pool or job.need <= 0 then
      best = job
    elseif pool.looked < most and not held[job.pool] then
      pool.looked = pool.looked + 1
      if fits(job.need, pool, rank_now(job)) then
        best = job
      elseif not passing[job.pool] and fits_ever(job, pool, bounds) then
        local is_held = hold(job, bounds)
        if (is_held or job.need == pool.total) and job.need <= pool.free then
          best = job
        else
          passing[job.pool], blocked = pool, blocked or job
          held[job.pool] = is_held or nil
        end
      end
    end
    return (best or bounds.is_over()) and true or passing
  end)
  return best, blocked, held
end

-- The job that has waited longest of those that the floor serves and that fit; it may use all memory but what is held.
local function oldest_of(pools, held, bounds)
  local oldest
  bounds.is_spent = function() return false end
  walk(BY_AGE, FLOOR_LOOK, bounds, function(job)
    local pool = pools and pools[job.pool]
    if not pool or job.need <= 0 or (not held[job.pool] and job.need <= pool.free) then oldest = job end
    return oldest and true
  end)
  return oldest
end
