package e2e

import (
	"fmt"
	"testing"
	"time"
)

// Without a TTL in the gate's configuration, as in the shipped files, keys are remembered for as long as the manager says.
func TestTheManagersTTLCounts(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		start := func(seconds int) (*stack, *proxy) {
			s := &stack{dir: t.TempDir(), target: target, mode: mode, settings: []string{"--committed-ttl-seconds", fmt.Sprint(seconds)}}
			s.stopAtEnd(t)
			s.startManager(t)
			s.startPayments(t)
			s.startProxy(t)
			return s, s.proxies[0]
		}
		s, p := start(86400)
		key := newKey()
		first := wantFirst(t, p, pay(key), 201)
		if left := time.Duration(s.ledgerEntry(t, key).ExpiresIn) * time.Millisecond; left < 23*time.Hour || left > 24*time.Hour {
			t.Errorf("the key is remembered for %v, want a day", left)
		}
		wantReplay(t, p, pay(key), first)

		// The gate's cache does not remember an answer for longer than the manager.
		_, p = start(1)
		key = newKey()
		wantFirst(t, p, pay(key), 201)
		eventually(t, "the key is forgotten", func() error {
			if a := send(t, p, pay(key)); a.replayed() {
				return fmt.Errorf("replayed: %v", a)
			}
			return nil
		})
	})
}
