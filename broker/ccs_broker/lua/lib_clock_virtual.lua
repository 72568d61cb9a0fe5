-- Shared: the clock of a simulation, in place of lib_clock: time stands still but where the simulator moves it.
--   ccs:clock  string  microseconds since 1970
-- EPOCH_US is that of ccs_broker.priority.
local EPOCH_US = 1735689600000000

local function now_us()
  return tonumber(redis.call('GET', 'ccs:clock'))
end

local function whole(n)
  -- Adding 0 makes a 0 of -0, which no command takes for a number.
  return string.format('%.0f', n + 0)
end
