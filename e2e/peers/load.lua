-- wrk script of the comparison in Envoy: POSTs of 55 bytes, without a key, with a
-- new key each, or with keys whose answers are recorded.
local head = "POST /payments HTTP/1.1\r\nHost: payments.test\r\nContent-Type: application/json\r\nAuthorization: Bearer load\r\nContent-Length: 55\r\n"
local body = '{"amount":100,"currency":"eur","note":"' .. string.rep("x", 14) .. '"}'

function init(args)
  local kind, prefix, keys = args[1], args[2], tonumber(args[3])
  local n = 0
  local start, rest = head .. "Idempotency-Key: " .. prefix, "\r\n\r\n" .. body
  if kind == "none" then
    local all = head .. "\r\n" .. body
    request = function() return all end
  elseif kind == "new" then
    request = function()
      n = n + 1
      return start .. n .. rest
    end
  else
    local all = {}
    for i = 0, keys - 1 do all[i] = start .. i .. rest end
    request = function()
      n = n + 1
      return all[n % keys]
    end
  end
end

function done(summary, latency)
  local e = summary.errors
  io.write(string.format("RESULT %d %d %d %d %d\n", summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.status + e.timeout))
end
