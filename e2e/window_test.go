package e2e

import (
	"fmt"
	"strconv"
	"testing"
)

// windowStack has a manager with a small window.
func windowStack(t *testing.T, target envoyTarget, mode string, plugin map[string]any, settings ...string) *stack {
	t.Helper()
	s := &stack{dir: t.TempDir(), target: target, mode: mode, plugin: plugin, settings: settings}
	s.stopAtEnd(t)
	s.startManager(t)
	s.startPayments(t)
	s.startProxy(t)
	return s
}

// logged waits for a line of the manager's log.
func (s *stack) logged(t *testing.T, texts ...string) {
	t.Helper()
	s.manager.logged(t, texts...)
}

// A full window refuses new keys and forgets nothing. One caller's flood leaves room for
// others, and what has expired makes room again.
func TestFullWindowRefuses(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := windowStack(t, target, mode, map[string]any{"committed_ttl_seconds": 15},
			"--max-entries", "20", "--scope-share", "0.5", "--cleanup-interval-seconds", "1")
		s.logged(t, `"msg":"window"`, `"max_entries":20`)
		p, other := s.proxies[0], s.startProxy(t)
		flood := func(key string) call { return pay(key, "Authorization", "Bearer flood") }
		var last string
		var first answer
		refused, paid := "", 0
		for refused == "" {
			key := newKey()
			switch a := send(t, p, flood(key)); a.status {
			case 201:
				last, first = key, a
				paid++
			case 503:
				refused = key
			default:
				t.Fatal(a)
			}
			if paid > 1000 {
				t.Fatalf("%d keys in a window of 20", paid)
			}
		}
		a := wantProblem(t, p, flood(refused), 503, "ledger-full")
		if n, err := strconv.Atoi(a.headers.Get("Retry-After")); err != nil || n < 1 || n > 10 {
			t.Errorf("Retry-After: %q", a.headers.Get("Retry-After"))
		}
		s.wantExecutions(t, refused, 0)
		wantFirst(t, p, pay(newKey(), "Authorization", "Bearer other"), 201)
		wantReplay(t, other, flood(last), first) // through a gate that asks the ledger
		s.wantExecutions(t, last, 1)
		s.logged(t, "the window is full: new keys are refused")
		eventually(t, "what has expired makes room", func() error {
			if a := send(t, p, flood(refused)); a.status != 201 {
				return fmt.Errorf("%v", a)
			}
			return nil
		})
		s.wantExecutions(t, refused, 1)
	})
}
