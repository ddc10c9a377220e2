package e2e

import (
	"strings"
	"testing"
)

// The filter's limits; see its defaults.
const bodyLimit = 512 << 10

func TestLargeRequestsReachTheUpstreamWhole(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := sharedStack(t, target, mode)
		p := s.proxies[0]
		for _, size := range []int{bodyLimit - 1, bodyLimit, bodyLimit + 1, 900 << 10} {
			key := newKey()
			c := pay(key)
			c.body = `{"amount":100,"pad":"` + strings.Repeat("x", size-23) + `"}`
			first := wantFirst(t, p, c, 201)
			wantReplay(t, p, c, first)
			s.wantExecutions(t, key, 1)
		}
	})
}

// An answer up to the limit is replayed whole. A larger one reaches the client whole, and a
// retry learns that the answer is not recorded. The work does not run again.
func TestLargeAnswersReachTheClientWhole(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := sharedStack(t, target, mode)
		p := s.proxies[0]
		key := newKey()
		c := pay(key, "x-demo-body-bytes", "524288")
		first := wantFirst(t, p, c, 201)
		if len(first.body) != bodyLimit {
			t.Fatalf("%d bytes", len(first.body))
		}
		wantReplay(t, p, c, first)
		s.wantExecutions(t, key, 1)

		for _, size := range []string{"524289", "4000000"} {
			key := newKey()
			c := pay(key, "x-demo-body-bytes", size)
			first := wantFirst(t, p, c, 201)
			if len(first.body) <= bodyLimit {
				t.Fatalf("%d bytes", len(first.body))
			}
			for range 2 {
				wantProblem(t, p, c, 410, "answer-not-recorded")
			}
			s.wantExecutions(t, key, 1)
		}
	})
}
