package e2e

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// The main job: the retry gets the first answer, the work ran once.
func TestRetryGetsTheFirstAnswer(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := sharedStack(t, target, mode)
		p := s.proxies[0]
		key := newKey()
		first := wantFirst(t, p, pay(key), 201)
		if got := first.headers.Get("Idempotency-Status"); got != "executed" {
			t.Errorf("first answer says %q", got)
		}
		for range 3 {
			wantReplay(t, p, pay(key), first)
		}
		if a := send(t, p, pay(key)); a.headers.Get("Idempotency-Status") != "replayed" {
			t.Errorf("retry says %q", a.headers.Get("Idempotency-Status"))
		}
		s.wantExecutions(t, key, 1)
		// The quoted form is the same key.
		wantReplay(t, p, pay(`"`+key+`"`), first)
		s.wantExecutions(t, key, 1)
	})
}

// What upstream answers decides what a retry gets.
func TestUpstreamAnswerDecidesWhatARetryGets(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := sharedStack(t, target, mode)
		p := s.proxies[0]
		for _, status := range []string{"200", "204", "302", "404", "422", "500", "503"} {
			key := newKey()
			c := pay(key, "x-demo-status", status)
			first := send(t, p, c)
			if fmt.Sprint(first.status) != status {
				t.Errorf("%s came as %v", status, first)
			}
			wantReplay(t, p, c, first)
			s.wantExecutions(t, key, 1)
		}
		for _, status := range []string{"408", "425", "429"} { // upstream asks for a retry
			key := newKey()
			c := pay(key, "x-demo-status", status)
			for n := 1; n <= 3; n++ {
				if a := sendFree(t, p, c); fmt.Sprint(a.status) != status || a.replayed() {
					t.Errorf("%s came as %v", status, a)
				}
				s.wantExecutions(t, key, n)
			}
		}
	})
}

func TestRequestsWithoutKeysPass(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := sharedStack(t, target, mode)
		p := s.proxies[0]
		before := s.executions(t, "")
		for n := 1; n <= 2; n++ { // no key: not protected
			if a := send(t, p, call{}); a.status != 201 || a.replayed() {
				t.Errorf("%v", a)
			}
			s.wantExecutions(t, "", before+n)
		}
		key := newKey()
		c := pay(key)
		c.method, c.path = "GET", "/healthz"
		for range 2 {
			if a := send(t, p, c); a.status != 200 || a.replayed() || string(a.body) != "ok\n" {
				t.Errorf("%v", a)
			}
		}
	})
}

// The same key for another request is refused, and changes nothing.
func TestSameKeyForAnotherRequest(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := sharedStack(t, target, mode)
		p := s.proxies[0]
		key := newKey()
		first := wantFirst(t, p, pay(key), 201)
		other := pay(key)
		other.body = `{"amount": 100000}`
		if mode == "body" {
			other.body = `{"amount": 200}` // the same length
		}
		wantProblem(t, p, other, 422, "fingerprint-mismatch")
		wantReplay(t, p, pay(key), first)
		s.wantExecutions(t, key, 1)
	})
}

func TestBadKeysAreRefused(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newStack(t, target, mode, nil) // it counts all that runs
		p := s.proxies[0]
		total := func() string {
			text, err := fetch("http://" + s.paymentsAddr + "/executions?key=none")
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		before := total()
		for _, key := range []string{strings.Repeat("k", 256), strings.Repeat("k", 5000), "", "a, b", `" a"`, `""`} {
			wantProblem(t, p, pay(key), 400, "invalid-key")
		}
		// Go's client refuses to send these.
		for _, key := range []string{"a\x01b", "a\x7fb", "a\x00b"} {
			c := dial(t, p)
			fmt.Fprintf(c, "POST /payments HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nIdempotency-Key: %s\r\n\r\n{}", key)
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != 400 {
				t.Errorf("key %q: %d", key, resp.StatusCode)
			}
			resp.Body.Close()
		}
		if after := total(); after != before {
			t.Errorf("something was executed: %s, before %s", after, before)
		}
		key := newKey()
		key += strings.Repeat("k", 255-len(key)) // the longest
		first := wantFirst(t, p, pay(key), 201)
		wantReplay(t, p, pay(key), first)
		s.wantExecutions(t, key, 1)
	})
}

// Callers do not share answers, whatever keys they choose.
func TestCallersDoNotShareAnswers(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := sharedStack(t, target, mode)
		p := s.proxies[0]
		key := newKey()
		calls := []call{
			pay(key), pay(key, "Authorization", "Bearer a"), pay(key, "Authorization", "Bearer b"),
			{key: &key, path: "/payments/other"},
		}
		var firsts []answer
		for n, c := range calls {
			firsts = append(firsts, wantFirst(t, p, c, 201))
			s.wantExecutions(t, key, n+1)
		}
		for n, c := range calls {
			wantReplay(t, p, c, firsts[n])
		}
		s.wantExecutions(t, key, len(calls))
	})
}
