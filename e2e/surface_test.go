package e2e

import "testing"

// What a client and an operator see of the gate, beyond answers that are right.

// One host has one scope, however a client writes it.
func TestHostsAreNormalized(t *testing.T) {
	eachMode(t, func(t *testing.T, target Target, mode string) {
		s := sharedStack(t, target, mode)
		p := s.proxies[0]
		key := newKey()
		c := pay(key)
		c.host = "pay.test:8443"
		first := wantFirst(t, p, c, 201)
		for _, c.host = range []string{"pay.test", "PAY.test:443", "pay.test.", "pay.test.:443"} {
			wantReplay(t, p, c, first)
		}
		s.wantExecutions(t, key, 1)
		c.host = "other.test"
		wantFirst(t, p, c, 201)
	})
}
