package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// lane is a client with one connection, which leads to one worker of the proxy.
type lane struct {
	client *http.Client
	vm     string // the VM that its requests go through
}

// pay sends a payment.
func (l lane) pay(t *testing.T, p *proxy, key string) <-chan answer {
	got := make(chan answer, 1)
	go func() {
		a, err := doWith(t.Context(), l.client, p, pay(key))
		if err != nil {
			a = answer{body: []byte(err.Error())}
		}
		got <- a
	}()
	return got
}

// trapModule is the gate in a VM that dies on demand.
func trapModule(t *testing.T) string {
	t.Helper()
	module, err := filepath.Abs(filepath.Join("..", "build", "e2e", "trap.wasm"))
	if err == nil {
		_, err = os.Stat(module)
	}
	if err != nil {
		t.Fatalf("%v; run make guests first", err)
	}
	return module
}

// lanes opens connections until there are at least n to each of two workers.
func lanes(t *testing.T, p *proxy, n int) (a, b []lane) {
	t.Helper()
	byVM := map[string][]lane{}
	for range 100 * n {
		transport := &http.Transport{DisableCompression: true, MaxConnsPerHost: 1}
		t.Cleanup(transport.CloseIdleConnections)
		l := lane{client: &http.Client{Transport: transport, Timeout: patience}}
		first, err := doWith(t.Context(), l.client, p, call{method: "GET"})
		if err != nil {
			t.Fatal(err)
		}
		l.vm = first.headers.Get("X-Vm")
		byVM[l.vm] = append(byVM[l.vm], l)
		if len(byVM) > 2 {
			t.Fatalf("2 workers have %d VMs", len(byVM))
		}
		all := [][]lane{}
		for _, lanes := range byVM {
			all = append(all, lanes)
		}
		if len(all) == 2 && min(len(all[0]), len(all[1])) >= n {
			return all[0], all[1]
		}
	}
	t.Fatal("all connections go to one worker")
	return nil, nil
}

// A VM dies with requests in flight. Only the requests of that VM fail, nothing runs a second
// time, and duplicates in other VMs do not wait for it.
func TestVMDies(t *testing.T) {
	module := trapModule(t)
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := &stack{dir: t.TempDir(), target: target, mode: mode, workers: 2, module: module, plugin: map[string]any{
			// Far longer than anybody here waits for anything.
			"pending_wait_timeout": 600, "pending_ttl_seconds": 600,
		}}
		up := s.startGated(t)
		p := s.proxies[0]
		const n = 5
		doomed, healthy := lanes(t, p, 2*n+1)
		// Of the doomed VM's requests the duplicates are at the other one, and so are other requests.
		var lost, kept, orphans, waiting []<-chan answer
		var lostKeys, keptKeys []string
		for i := range n {
			lostKeys, keptKeys = append(lostKeys, newKey()), append(keptKeys, newKey())
			lost, kept = append(lost, doomed[i].pay(t, p, lostKeys[i])), append(kept, healthy[i].pay(t, p, keptKeys[i]))
			up.awaitRun(t, lostKeys[i])
			up.awaitRun(t, keptKeys[i])
			orphans = append(orphans, healthy[n+i].pay(t, p, lostKeys[i]))
		}
		waiting = append(waiting, healthy[2*n].pay(t, p, keptKeys[0]))
		p.awaitMetric(t, "oncegate_gate_waiters", n+1)

		if a, err := doWith(t.Context(), doomed[2*n].client, p, pay(newKey(), "x-trap", "now")); err == nil && a.status != 503 {
			t.Fatalf("the request that ends the VM: %v", a)
		}
		for i := range n {
			if a := <-orphans[i]; a.status != 409 {
				t.Errorf("a duplicate of a request that died: %v", a)
			}
		}
		close(up.open)
		for i := range n {
			if a := <-lost[i]; a.status == 201 {
				t.Errorf("a request of the VM that died: %v", a)
			}
			if a := <-kept[i]; a.status != 201 {
				t.Errorf("a request of the other VM: %v", a)
			}
		}
		if a := <-waiting[0]; a.status != 201 || !a.replayed() {
			t.Errorf("a duplicate of a request of the other VM: %v", a)
		}

		// A new VM replaces it. It works, and it runs nothing again either.
		eventually(t, "there is no new VM", func() error {
			a, err := doWith(t.Context(), doomed[0].client, p, pay(newKey()))
			if err == nil && (a.status != 201 || a.headers.Get("X-Vm") == doomed[0].vm) {
				err = fmt.Errorf("%v", a)
			}
			return err
		})
		for i := range n {
			for _, l := range []lane{doomed[i], healthy[i]} {
				if a := <-l.pay(t, p, lostKeys[i]); a.status != 409 {
					t.Errorf("a later duplicate of a request that died: %v", a)
				}
				if a := <-l.pay(t, p, keptKeys[i]); a.status != 201 || !a.replayed() {
					t.Errorf("a later duplicate of another request: %v", a)
				}
			}
			if a, b := up.ran(lostKeys[i]), up.ran(keptKeys[i]); a != 1 || b != 1 {
				t.Errorf("executed %d and %d times", a, b)
			}
		}
	})
}

// The whole proxy is stopped for longer than a VM may be silent. When it runs again, no VM takes
// another one for dead, and duplicates still wait for their answer.
func TestProxyStandsStill(t *testing.T) {
	module := trapModule(t)
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := &stack{dir: t.TempDir(), target: target, mode: mode, workers: 2, module: module, plugin: map[string]any{
			"pending_wait_timeout": 600, "pending_ttl_seconds": 600,
		}}
		up := s.startGated(t)
		p := s.proxies[0]
		const n = 5
		left, right := lanes(t, p, 2*n)
		all := make(chan answer, 4*n)
		send := func(l lane, key string) { go func() { all <- <-l.pay(t, p, key) }() }
		for i := range n {
			keys := []string{newKey(), newKey()}
			send(left[i], keys[0])
			send(right[i], keys[1])
			up.awaitRun(t, keys[0])
			up.awaitRun(t, keys[1])
			send(left[n+i], keys[1])
			send(right[n+i], keys[0])
		}
		p.awaitMetric(t, "oncegate_gate_waiters", 2*n)
		p.pause(t)
		<-time.After(7 * time.Second)
		p.resume(t)
		// Long enough for every VM to look at its duplicates again, and to answer one wrongly.
		for end := time.After(3 * time.Second); end != nil; {
			select {
			case a := <-all:
				t.Fatalf("an answer before there is one: %v", a)
			case <-end:
				end = nil
			}
		}
		close(up.open)
		for range 4 * n {
			if a := <-all; a.status != 201 {
				t.Errorf("%v", a)
			}
		}
	})
}
