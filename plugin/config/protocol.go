package config

import "github.com/tidwall/gjson"

// protocol is what a protocol that demands keys wants of a route, as fields of the configuration. A route's own fields
// override them.
type protocol struct{ name, fields string }

// protocols are the values of the field protocol. docs/protocols.md says where each rule comes from.
var protocols = [...]protocol{
	// The IETF's draft, draft-ietf-httpapi-idempotency-key-header.
	{"ietf", `{
		"key": {"required": true}
	}`},
	// The Agentic Commerce Protocol, "Idempotency, Retries & Concurrency".
	{"acp", `{
		"methods": ["POST"],
		"mode": "body",
		"key": {"required": true},
		"fingerprint": {"body": "canonical_json", "content_type": "none", "query": "none"},
		"outcomes": {"commit": ["2xx", "3xx"], "reject": ["4xx"], "release": ["5xx", "408", "412", "421", "425", "428", "429"]},
		"committed_ttl_seconds": 86400, "rejected_ttl_seconds": 86400,
		"response": {"echo_key": true},
		"problems": {
			"media_type": "application/json",
			"body": {"type": "{type}", "code": "{code}", "message": "{title}. {detail}"},
			"status": {"outcome-unknown": 500},
			"codes": {"key-required": "idempotency_key_required", "fingerprint-mismatch": "idempotency_conflict", "request-pending": "idempotency_in_flight",
				"outcome-unknown": "outcome_unknown"},
			"types": {"*": "service_unavailable", "key-required": "invalid_request", "invalid-key": "invalid_request", "invalid-request": "invalid_request",
				"fingerprint-mismatch": "invalid_request", "request-pending": "invalid_request", "scope-ambiguous": "invalid_request",
				"unsupported-protocol": "invalid_request", "encoding-not-accepted": "invalid_request",
				"outcome-unknown": "processing_error", "answer-not-recorded": "processing_error"}
		}
	}`},
	// The Universal Commerce Protocol, "Message Signatures, Replay Protection".
	{"ucp", `{
		"methods": ["POST", "PUT", "PATCH", "DELETE"],
		"mode": "body",
		"scope": ["host", "method", "path", "header:ucp-agent?", "header:authorization?"],
		"fingerprint": {"body": "raw", "content_type": "none"},
		"committed_ttl_seconds": 172800, "rejected_ttl_seconds": 172800,
		"problems": {
			"media_type": "application/json",
			"body": {"code": "{code}", "content": "{title}. {detail}"},
			"status": {"fingerprint-mismatch": 409},
			"codes": {"fingerprint-mismatch": "idempotency_conflict", "request-pending": "idempotency_in_flight", "outcome-unknown": "idempotency_outcome_unknown"}
		}
	}`},
	// The Iceberg REST catalog. Its clients take 409 for "the commit failed" and delete files then, so nothing that may
	// have run is answered with 4xx.
	{"iceberg", `{
		"methods": ["POST", "DELETE"],
		"key": {"format": "uuid"},
		"lifetime_path": "/v1/config",
		"outcomes": {"commit": ["2xx", "3xx"], "reject": ["4xx"], "release": ["401", "403", "408", "419", "421", "425", "429", "503"], "hold": ["5xx"]},
		"committed_ttl_seconds": 86400, "rejected_ttl_seconds": 86400,
		"problems": {
			"media_type": "application/json",
			"body": {"error": {"message": "{title}. {detail}", "type": "{type}", "code": "{status}"}},
			"status": {"request-pending": 503, "outcome-unknown": 500, "answer-not-recorded": 500, "encoding-not-accepted": 500},
			"types": {"*": "ServiceUnavailableException", "invalid-key": "BadRequestException", "invalid-request": "BadRequestException",
				"key-required": "BadRequestException", "scope-ambiguous": "BadRequestException", "fingerprint-mismatch": "UnprocessableEntityException",
				"outcome-unknown": "CommitStateUnknownException", "answer-not-recorded": "CommitStateUnknownException",
				"encoding-not-accepted": "CommitStateUnknownException"}
		}
	}`},
	// JSON-RPC 2.0 over HTTP, as the Model Context Protocol uses it. The key's place is that of UCP's binding to MCP. What MCP
	// has in _meta, such as a progress token, is about one try. Its clients take a session's id from any answer, so replays
	// have none.
	{"jsonrpc", `{
		"methods": ["POST"],
		"mode": "body",
		"key": {"header": "", "json_path": "params.arguments.meta.idempotency-key"},
		"fingerprint": {"body": "canonical_json", "content_type": "none", "exclude": ["id", "params._meta"]},
		"jsonrpc": true,
		"response": {"drop_headers": ["set-cookie", "mcp-session-id"]},
		"problems": {
			"media_type": "application/json",
			"body": {"jsonrpc": "2.0", "id": "{id}", "error": {"code": -32000, "message": "{title}", "data": {"code": "{code}", "detail": "{detail}", "status": "{status}"}}}
		}
	}`},
	// Stripe's API v1 replays what began to execute, 500s included. It does not record what it refused before: bad parameters,
	// a missing key, a conflict with a running request, the rate limit.
	{"stripe-v1", `{
		"methods": ["POST"],
		"scope": ["host", "header:authorization"],
		"mode": "body",
		"fingerprint": {"body": "form"},
		"outcomes": {"commit": ["2xx", "3xx", "4xx", "5xx"], "reject": [], "release": ["400", "401", "409", "429"], "hold": []},
		"committed_ttl_seconds": 86400, "rejected_ttl_seconds": 86400,
		` + stripeProblems + `
	}`},
	// Stripe's API v2, whose bodies are JSON, runs a failed request again, so that a retry completes the work.
	{"stripe-v2", `{
		"methods": ["POST", "DELETE"],
		"scope": ["host", "header:authorization"],
		"mode": "body",
		"fingerprint": {"body": "canonical_json"},
		"outcomes": {"commit": ["2xx", "3xx", "4xx"], "reject": [], "release": ["5xx", "400", "401", "409", "429"], "hold": []},
		"committed_ttl_seconds": 2592000, "rejected_ttl_seconds": 2592000,
		` + stripeProblems + `
	}`},
}

const stripeProblems = `"response": {"echo_key": true},
		"problems": {
			"media_type": "application/json",
			"body": {"error": {"type": "{type}", "code": "{code}", "message": "{title}. {detail}"}},
			"status": {"fingerprint-mismatch": 400},
			"codes": {"request-pending": "idempotency_key_in_use"},
			"types": {"*": "api_error", "fingerprint-mismatch": "idempotency_error", "request-pending": "invalid_request_error",
				"invalid-key": "invalid_request_error", "key-required": "invalid_request_error"}
		}`

// applyProtocol sets the fields of the protocol that the object v names.
func applyProtocol(r *reader, path string, v gjson.Result, rl *rule) {
	name := v.Get("protocol")
	if !name.Exists() {
		return
	}
	names := make([]string, len(protocols))
	for i := range protocols {
		names[i] = protocols[i].name
	}
	p := &protocols[r.choice(join(path, "protocol"), name, names...)]
	if r.err == nil {
		r.object(path, gjson.Parse(p.fields), append(routeFields(r, &rl.route), methodsField(r, rl)))
	}
}
