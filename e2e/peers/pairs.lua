-- wrk script: new keys. Every other request reserves a fresh key; the ones in
-- between commit a key that was reserved long enough ago (more requests than
-- there are connections), so that its reserve has been answered.
local thread_count = 0
function setup(thread)
  thread:set("id", thread_count)
  thread_count = thread_count + 1
end

local function str(s)
  local n = #s
  if n < 128 then return string.char(n) .. s end
  return string.char(128 + n % 128, math.floor(n / 128)) .. s
end

local headers = { ["content-type"] = "application/vnd.oncegate.v1" }
local scope = string.rep("s", 43)
local fingerprint = string.rep("f", 43)
local answer = string.rep("x", 256)
local run = tostring(os.time()) .. tostring({}):gsub("[^%x]", "")

function init(args)
  lag = tonumber(args[1]) * 2 + 2
  count = 0
end

local function key(n) return run .. "-" .. id .. "-" .. n end
local function token(n) return string.format("%032d", n) end

function request()
  count = count + 1
  local n = math.floor(count / 2)
  if count % 2 == 0 and n > lag then
    n = n - lag
    -- version, kind, key, scope, token, fingerprint, ttl, then the result:
    -- status 201, no flags, one header, body
    local body = "\1F" .. str(key(n)) .. str(scope) .. str(token(n)) .. str(fingerprint) .. "\0" ..
      string.char(128 + 201 % 128, 1) .. "\0\1" .. str("content-type") .. str("application/json") .. str(answer)
    return wrk.format("POST", "/v1/ledger/commit", headers, body)
  end
  if count % 2 == 0 then n = -n end -- nothing to commit yet: one more new key
  local body = "\1R" .. str(key(n)) .. str(scope) .. str(fingerprint) .. str(token(n)) .. "\0\0"
  return wrk.format("POST", "/v1/ledger/reserve", headers, body)
end
