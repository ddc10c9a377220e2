-- wrk script: duplicates. The first requests commit a thousand keys (a commit
-- of a key without an entry is recorded); all others reserve one of them and get
-- its recorded answer of 256 bytes.
local function str(s)
  local n = #s
  if n < 128 then return string.char(n) .. s end
  return string.char(128 + n % 128, math.floor(n / 128)) .. s
end

local headers = { ["content-type"] = "application/vnd.oncegate.v1" }
local scope = string.rep("s", 43)
local fingerprint = string.rep("f", 43)
local answer = string.rep("x", 256)
local token = string.rep("t", 32)
local keys = 1000
local reserves = {}

function init(args)
  count = 0
  for n = 0, keys - 1 do
    local body = "\1R" .. str("dup-" .. n) .. str(scope) .. str(fingerprint) .. str(token) .. "\0\0"
    reserves[n] = wrk.format("POST", "/v1/ledger/reserve", headers, body)
  end
end

function request()
  local n = count % keys
  count = count + 1
  if count <= keys then
    local body = "\1F" .. str("dup-" .. n) .. str(scope) .. str(token) .. str(fingerprint) .. "\0" ..
      string.char(128 + 201 % 128, 1) .. "\0\1" .. str("content-type") .. str("application/json") .. str(answer)
    return wrk.format("POST", "/v1/ledger/commit", headers, body)
  end
  return reserves[n]
end
