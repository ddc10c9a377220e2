package e2e

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// twoCentres is two data centres with a manager and a proxy each, and one upstream that both reach.
type twoCentres struct {
	*stack
	centres [2]centre
}

type centre struct {
	manager *process
	addr    string
	proxy   *proxy
}

func newTwoCentres(t *testing.T, target envoyTarget, mode string) *twoCentres {
	t.Helper()
	d := &twoCentres{stack: &stack{dir: t.TempDir(), target: target, mode: mode, plugin: map[string]any{
		"pending_wait_timeout": 5, "match": []any{
			map[string]any{"path": "/payments", "durability": "global", "scope": []string{"host"}, "anonymous": "shared"},
		},
	}}}
	d.stopAtEnd(t)
	d.startPayments(t)
	for i := range d.centres { // each gets the other one's address
		if err := d.hold(&d.centres[i].addr); err != nil {
			t.Fatal(err)
		}
	}
	for i := range d.centres {
		d.startCentre(t, i)
	}
	for i := range d.centres { // which first ask each other for an earlier ledger
		eventually(t, "it takes no new keys", func() error { return d.quarantined(d.centres[i].addr) })
	}
	for i := range d.centres {
		d.managerAddr = d.centres[i].addr
		d.centres[i].proxy = d.startProxy(t)
	}
	return d
}

func (d *twoCentres) name(i int) string { return []string{"dc1", "dc2"}[i] }

// startCentre starts a manager that knows of the other data centre; again after a kill.
func (d *twoCentres) startCentre(t *testing.T, i int) {
	t.Helper()
	c := &d.centres[i]
	if err := d.launch(&c.manager, "oncegate", "api", &c.addr, "serve", "--data-dir", filepath.Join(d.dir, d.name(i)), "--origin", d.name(i),
		"--peer", d.name(1-i)+"=http://"+d.centres[1-i].addr, "--listen"); err != nil {
		t.Fatal(err)
	}
}

// payAt pays in a data centre until the key's home answers it: within its limit a busy machine may not.
func (d *twoCentres) payAt(t *testing.T, i int, key string) (answer, error) {
	var a answer
	err := poll(nil, func() (err error) {
		if a, err = do(t.Context(), d.centres[i].proxy, pay(key)); err == nil && strings.HasPrefix(a.headers.Get("Idempotency-Status"), "home-") {
			err = fmt.Errorf("%v", a)
		}
		return err
	})
	return a, err
}

// TestGlobalRouteInTwoDataCentres: a key that is sent to both data centres at once runs once, and both answer the same.
// Without its home it does not run, whichever data centre is asked, and it runs once when the home is back.
func TestGlobalRouteInTwoDataCentres(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		d := newTwoCentres(t, target, mode)
		for range 6 {
			key := newKey()
			var answers [2]answer
			var both sync.WaitGroup
			var errs [2]error
			for i := range d.centres {
				both.Go(func() { answers[i], errs[i] = d.payAt(t, i, key) })
			}
			both.Wait()
			for i, a := range answers {
				if a.status != 201 {
					t.Errorf("%s: %v, %v", d.name(i), a, errs[i])
				}
			}
			if !bytes.Equal(answers[0].body, answers[1].body) {
				t.Errorf("two answers: %v and %v", answers[0], answers[1])
			}
			d.wantExecutions(t, key, 1)
		}

		// Of enough keys, some have their home in the data centre that is away.
		d.centres[1].manager.kill()
		refused := ""
		for i := 0; refused == "" && i < 64; i++ {
			key := newKey()
			if a := send(t, d.centres[0].proxy, pay(key)); a.status == 503 {
				refused = key
				if code := a.headers.Get("Idempotency-Status"); code != "home-unavailable" && code != "home-unanswered" {
					t.Errorf("refused with %q", code)
				}
				if a.headers.Get("Retry-After") == "" {
					t.Error("no Retry-After")
				}
			}
		}
		if refused == "" {
			t.Fatal("every key ran without the other data centre")
		}
		d.wantExecutions(t, refused, 0)
		d.startCentre(t, 1)
		first := eventuallyPaid(t, "the home is back", d.centres[0].proxy, refused)
		if a := send(t, d.centres[1].proxy, pay(refused)); !bytes.Equal(a.body, first.body) {
			t.Errorf("%v, want %v", a, first)
		}
		d.wantExecutions(t, refused, 1)
	})
}
