package e2e

import (
	"fmt"
	"strconv"
	"testing"
)

// TestSettingsOfRoutes has a rule for each setting that no other test shows in a real Envoy.
func TestSettingsOfRoutes(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		rules := []any{
			map[string]any{"path": "/uuid", "key": map[string]any{"format": "uuid"}},
			map[string]any{"path": "/structured", "key": map[string]any{"format": "structured"}},
			map[string]any{"path": "/success", "outcomes": map[string]any{"release": []string{"4xx", "5xx"}}},
			map[string]any{"path": "/proxied", "outcomes": map[string]any{"hold": []string{"502", "504"}, "release": []string{"503"}}},
			map[string]any{"path": "/keep", "response": map[string]any{"keep_headers": []string{"x-payment-*"}}},
			map[string]any{"path": "/rows", "streamed_types": []string{"application/x-ndjson"}},
			map[string]any{"path_pattern": "/accounts/*/payments", "key": map[string]any{"required": true}},
		}
		if mode == "body" {
			rules = append(rules,
				map[string]any{"path": "/json", "key": map[string]any{"json_path": "order.id"}, "forward": map[string]any{"key_header": "x-key"}},
				map[string]any{"path": "/derive", "key": map[string]any{"derive": "sha256"}, "forward": map[string]any{"key_header": "x-key"}},
				map[string]any{"path": "/include", "fingerprint": map[string]any{"include": []string{"amount", "to.account"}}},
			)
		}
		p := newAskedStack(t, target, mode, map[string]any{"match": rules}).proxies[0]
		to := func(path string, c call) call {
			c.path = path
			return c
		}
		keyless := func(path, body string) call {
			c := to(path, pay(""))
			c.key, c.body = nil, body
			return c
		}

		uuid := to("/uuid", pay("6f9619ff-8b86-4d01-b42d-00cf4fc964ff"))
		wantReplay(t, p, uuid, wantFirst(t, p, uuid, 201))
		wantProblem(t, p, to("/uuid", pay(newKey())), 400, "invalid-key")

		structured := to("/structured", pay("alice:7:0123456789abcdef"))
		wantReplay(t, p, structured, wantFirst(t, p, structured, 201))
		wantProblem(t, p, to("/structured", pay("alice:7:"+newKey())), 400, "invalid-key")

		failing := to("/success", pay(newKey(), "x-status", "500"))
		wantFirst(t, p, failing, 500)
		wantFirst(t, p, failing, 500) // it runs again
		delete(failing.headers, "x-status")
		wantReplay(t, p, failing, wantFirst(t, p, failing, 201))

		for status, code := range map[string]string{"502": "outcome-unknown", "504": "outcome-unknown", "503": ""} {
			c := to("/proxied", pay(newKey(), "x-status", status))
			want, _ := strconv.Atoi(status)
			wantFirst(t, p, c, want)
			if delete(c.headers, "x-status"); code == "" {
				wantFirst(t, p, c, 201)
			} else {
				wantProblem(t, p, c, 409, code)
			}
		}
		for _, status := range []string{"412", "421", "428"} { // they say nothing about this request
			c := pay(newKey(), "x-status", status)
			want, _ := strconv.Atoi(status)
			wantFirst(t, p, c, want)
			delete(c.headers, "x-status")
			wantFirst(t, p, c, 201)
		}

		keep := to("/keep", pay(newKey(), "x-reply-x-payment-id", "7", "x-reply-x-other", "o"))
		for _, other := range []string{"o", ""} { // the first answer has it, the replay does not
			a := send(t, p, keep)
			if a.status != 201 || a.replayed() != (other == "") || a.headers.Get("X-Payment-Id") != "7" || a.headers.Get("X-Other") != other {
				t.Fatalf("%v; want x-payment-id 7 and x-other %q", a, other)
			}
		}

		rows := to("/rows", pay(newKey(), "x-reply-content-type", "application/x-ndjson"))
		wantFirst(t, p, rows, 201)
		wantProblem(t, p, rows, 410, "answer-not-recorded")
		whole := to("/rows", pay(newKey(), "x-reply-content-type", "text/event-stream"))
		wantReplay(t, p, whole, wantFirst(t, p, whole, 201)) // the list is replaced

		account := to("/accounts/7/payments", pay(newKey()))
		wantReplay(t, p, account, wantFirst(t, p, account, 201))
		wantProblem(t, p, keyless("/accounts/7/payments", ""), 400, "key-required")
		for _, path := range []string{"/accounts/payments", "/accounts/7/8/payments", "/accounts/7/payments/9"} {
			other := to(path, pay(newKey()))
			wantFirst(t, p, other, 201)
			wantFirst(t, p, other, 201) // no rule matches
		}

		if mode != "body" {
			return
		}
		id := newKey()
		order := keyless("/json", fmt.Sprintf(`{"order": {"id": %q}}`, id))
		first := wantFirst(t, p, order, 201)
		if key := first.seen(t).Headers.Get("X-Key"); key != id {
			t.Errorf("the key is %q, want %q", key, id)
		}
		wantReplay(t, p, order, first)
		wantFirst(t, p, keyless("/json", `{"order": {}}`), 201)

		derived := keyless("/derive", `{"amount": 1}`)
		first = wantFirst(t, p, derived, 201)
		if key := first.seen(t).Headers.Get("X-Key"); len(key) != 64 {
			t.Errorf("the key is %q, want 64 hex digits", key)
		}
		wantReplay(t, p, derived, first)
		wantFirst(t, p, keyless("/derive", `{"amount": 2}`), 201)

		included := to("/include", pay(newKey()))
		included.body = `{"amount": 1, "to": {"account": "a", "note": "x"}, "sent_at": 1}`
		first = wantFirst(t, p, included, 201)
		included.body = `{"sent_at": 2, "to": {"note": "y", "account": "a"}, "amount": 1.0}`
		wantReplay(t, p, included, first)
		included.body = `{"amount": 1, "to": {"account": "b"}}`
		wantProblem(t, p, included, 422, "fingerprint-mismatch")
	})
}
