-- Shared: the broker's clock, and numbers over 2^31 written out whole.
-- BAND_US and EPOCH_US are those of ccs_broker.priority.
local BAND_US = 2000000000000000
local EPOCH_US = 1735689600000000

local function now_us()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

-- Numbers over 2^31 must be written out whole: tostring() keeps 14 digits only.
local function whole(n)
  return string.format('%.0f', n)
end
