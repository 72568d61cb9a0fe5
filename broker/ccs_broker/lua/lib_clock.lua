-- Shared: the broker's clock, and numbers over 2^31 written out whole.
-- EPOCH_US is that of ccs_broker.priority.
local EPOCH_US = 1735689600000000

local function now_us()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

-- Numbers over 2^31 must be written out whole: tostring() keeps 14 digits only.
local function whole(n)
  -- Adding 0 makes a 0 of -0, which no command takes for a number.
  return string.format('%.0f', n + 0)
end
