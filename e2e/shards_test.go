package e2e

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// fleet is a stack whose managers are shards.
type fleet struct {
	*stack
	shards  map[string]*shardProcess
	timeout time.Duration // of calls to managers; 0: managerTimeout
}

// shardProcess is a manager that is a shard.
type shardProcess struct {
	*process
	addr string
}

// newFleet starts payments. The test starts everything else.
func newFleet(t *testing.T, target envoyTarget, mode string) *fleet {
	t.Helper()
	f := &fleet{shards: map[string]*shardProcess{}, stack: &stack{dir: t.TempDir(), target: target, mode: mode, plugin: map[string]any{
		"pending_wait_timeout": 0.5, "pending_ttl_seconds": 3600, "committed_ttl_seconds": 3600,
	}}}
	f.stopAtEnd(t)
	f.startPayments(t)
	return f
}

// startShard starts a manager; again on the same address and data after an earlier one.
func (f *fleet) startShard(t *testing.T, name string, args ...string) {
	t.Helper()
	m := f.shards[name]
	if m == nil {
		m = new(shardProcess)
		f.shards[name] = m
	}
	args = append([]string{"serve", "--data-dir", filepath.Join(f.dir, "data-"+name), "--shard", name, "--cleanup-interval-seconds", "0.2"}, args...)
	if err := f.launch(&m.process, "oncegate", "api", &m.addr, append(args, "--listen")...); err != nil {
		t.Fatal(err)
	}
}

// wiring leads each cluster to its own manager.
func (f *fleet) wiring() map[string]string {
	w := map[string]string{}
	for name, m := range f.shards {
		w[name] = m.addr
	}
	return w
}

// proxy starts a proxy with lists of shards and clusters by name. The second list may be empty.
func (f *fleet) proxy(t *testing.T, shards, previous []string, clusters map[string]string) *proxy {
	t.Helper()
	manager := map[string]any{"shards": shards}
	if len(previous) > 0 {
		manager["previous_shards"] = previous
	}
	if f.timeout > 0 {
		manager["timeout_ms"] = f.timeout.Milliseconds()
	}
	plugin := maps.Clone(f.plugin)
	plugin["manager"] = manager
	p, err := f.target.Start(targetConfig{
		dir: filepath.Join(f.dir, fmt.Sprintf("proxy-%d", len(f.proxies))), mode: f.mode, plugin: plugin, workers: cmp.Or(f.workers, 2),
		upstream: f.paymentsAddr, managers: clusters,
	})
	if p != nil {
		f.proxies = append(f.proxies, p)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// scope returns the scope of all payments here. A payment must be in the ledger of a shard.
func (f *fleet) scope(t *testing.T) string {
	t.Helper()
	var page struct {
		Entries []struct{ Scope string } `json:"entries"`
	}
	for _, m := range f.shards {
		text, err := fetch("http://" + m.addr + "/v1/ledger/entries?limit=1")
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &page); err != nil {
			t.Fatal(err)
		}
		if len(page.Entries) > 0 {
			return page.Entries[0].Scope
		}
	}
	t.Fatal("no ledger has an entry")
	return ""
}

// keysOf returns new keys that a shard of a list owns.
func keysOf(scope string, shards []string, name string, n int) (keys []string) {
	for len(keys) < n {
		if key := newKey(); shards[api.Owner(shards, scope, key)] == name {
			keys = append(keys, key)
		}
	}
	return keys
}

// refused pays and must get 503 with Retry-After.
func refused(t *testing.T, p *proxy, key string) {
	t.Helper()
	a := wantProblem(t, p, pay(key), 503, "manager-unavailable")
	if a.headers.Get("Retry-After") == "" {
		t.Errorf("no Retry-After: %v", a)
	}
}

// TestShardWiredWrongly: the keys of a cluster that leads to another shard's manager are refused with an alarm, and nothing runs.
func TestShardWiredWrongly(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		f := newFleet(t, target, mode)
		f.startShard(t, "a")
		f.startShard(t, "b")
		list := []string{"a", "b"}
		right := f.proxy(t, list, nil, f.wiring())
		wantFirst(t, right, pay(newKey()), 201)
		scope := f.scope(t)

		wrong := f.proxy(t, list, nil, map[string]string{"a": f.shards["b"].addr, "b": f.shards["b"].addr})
		lost := keysOf(scope, list, "a", 3)
		for _, key := range lost {
			refused(t, wrong, key)
			f.wantExecutions(t, key, 0)
		}
		for _, key := range keysOf(scope, list, "b", 3) {
			first := wantFirst(t, wrong, pay(key), 201)
			wantReplay(t, right, pay(key), first)
		}
		f.shards["b"].logged(t, "ALARM: a call means another shard", `"meant":"a"`)
		wrong.logged(t, "the manager there is another shard")
		for _, key := range lost {
			wantFirst(t, right, pay(key), 201)
			f.wantExecutions(t, key, 1)
		}
	})
}

// A shard that is down refuses its own keys, and only those, until it is back.
func TestShardThatIsDownRefusesItsOwnKeysOnly(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		f := newFleet(t, target, mode)
		f.timeout = 5 * time.Second // requests wait so long for a manager that has just gone
		list := []string{"a", "b", "c"}
		for _, name := range list {
			f.startShard(t, name, "--shards", strings.Join(list, ","))
		}
		p, other := f.proxy(t, list, nil, f.wiring()), f.proxy(t, list, nil, f.wiring())
		wantFirst(t, p, pay(newKey()), 201)
		scope := f.scope(t)
		before := keysOf(scope, list, "a", 3)
		first := map[string]answer{}
		for _, key := range before {
			first[key] = wantFirst(t, p, pay(key), 201)
		}
		f.shards["a"].kill()
		down := keysOf(scope, list, "a", 4)
		for _, key := range down {
			refused(t, p, key)
			refused(t, other, key)
		}
		for _, key := range append(keysOf(scope, list, "b", 4), keysOf(scope, list, "c", 4)...) {
			a := wantFirst(t, p, pay(key), 201)
			wantReplay(t, other, pay(key), a)
			f.wantExecutions(t, key, 1)
		}
		for _, key := range before {
			refused(t, other, key) // the one that knows the answer is down
		}
		f.startShard(t, "a")
		for _, proxy := range []*proxy{p, other} {
			eventuallyPaid(t, "the shard is back", proxy, keysOf(scope, list, "a", 1)[0])
		}
		for _, key := range before {
			wantReplay(t, other, pay(key), first[key])
			f.wantExecutions(t, key, 1)
		}
		for _, key := range down {
			a := eventuallyPaid(t, "the shard is back", p, key)
			wantReplay(t, other, pay(key), a)
			f.wantExecutions(t, key, 1)
		}
	})
}

// moved returns how many keys of other shards a manager has.
func (f *fleet) moved(name string) (n int, err error) {
	text, err := fetch("http://" + f.shards[name].addr + "/v1/ledger/shard")
	if err != nil {
		return 0, err
	}
	var s struct {
		Moved map[string]int `json:"moved"`
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return 0, err
	}
	for _, c := range s.Moved {
		n += c
	}
	return n, nil
}

// forget deletes from a manager the entries whose keys the list gives to other shards, as if they had expired.
func (f *fleet) forget(t *testing.T, name string, list, keys []string) {
	t.Helper()
	scope := f.scope(t)
	for _, key := range keys {
		if list[api.Owner(list, scope, key)] == name {
			continue
		}
		err := discard("http://" + f.shards[name].addr + "/v1/ledger/entries/" + url.PathEscape(key) + "?scope=" + url.QueryEscape(scope))
		if err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, name+" has nothing of others", func() error {
		n, err := f.moved(name)
		return errors.Join(err, unequal(n, 0))
	})
}

// discard deletes the resource of a URL. It may be gone already.
func discard(url string) error {
	req, err := http.NewRequest(http.MethodDelete, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNotFound {
		return errors.New(resp.Status)
	}
	return nil
}

func unequal(got, want int) error {
	if got == want {
		return nil
	}
	return fmt.Errorf("%d, want %d", got, want)
}

// TestNothingRunsTwiceWhileShardsChange adds a shard and removes another one while clients pay, repeat what others pay, and get through two
// proxies whose lists change one after the other. Managers are restarted, some by kill -9. No key runs twice, every
// request is answered, and all who pay under a key get the same answer.
func TestNothingRunsTwiceWhileShardsChange(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		f := newFleet(t, target, mode)
		ab, abc, ac := []string{"a", "b"}, []string{"a", "b", "c"}, []string{"a", "c"}
		names := func(list []string) string { return strings.Join(list, ",") }
		for _, name := range ab {
			f.startShard(t, name, "--shards", names(ab))
		}
		wiring := f.wiring()
		l := f.load(t, 2, func() *proxy { return f.proxy(t, ab, nil, wiring) })
		l.more(t, 100)

		t.Log("add c: 1. it starts")
		f.startShard(t, "c", "--shards", names(abc))
		wiring = f.wiring()
		t.Log("2. the gates know of it, one after the other; a manager crashes meanwhile")
		l.replace(t, 0, f.proxy(t, abc, ab, wiring))
		l.more(t, 50)
		f.shards["a"].kill()
		f.startShard(t, "a", "--shards", names(ab))
		l.settle(t)
		l.replace(t, 1, f.proxy(t, abc, ab, wiring))
		l.more(t, 50)
		if n, err := f.moved("c"); err != nil || n != 0 {
			t.Errorf("%d, %v", n, err)
		}
		t.Log("3. the old managers get the list, one after the other, one of them by kill -9")
		f.shards["a"].kill()
		f.startShard(t, "a", "--shards", names(abc))
		l.more(t, 50)
		if err := f.shards["b"].stop(); err != nil {
			t.Error(err)
		}
		f.startShard(t, "b", "--shards", names(abc))
		l.settle(t)
		l.more(t, 100)
		t.Log("4. what they have of others' keys runs out")
		moved := 0
		for _, name := range ab {
			n, err := f.moved(name)
			if err != nil {
				t.Fatal(err)
			}
			moved += n
		}
		if moved == 0 {
			t.Error("no key has moved, nothing was tested")
		}
		l.retire(t)
		for _, name := range ab {
			f.forget(t, name, abc, l.all())
		}
		t.Log("5. the gates forget the old list")
		for i := range 2 {
			l.replace(t, i, f.proxy(t, abc, nil, wiring))
			l.more(t, 50)
		}

		t.Log("remove b: 2. the gates know of it")
		for i := range 2 {
			l.replace(t, i, f.proxy(t, ac, abc, wiring))
			l.more(t, 50)
		}
		t.Log("3. the managers get the list, those first that get keys")
		for _, name := range []string{"a", "c", "b"} {
			f.shards[name].kill()
			f.startShard(t, name, "--shards", names(ac))
			l.settle(t)
			l.more(t, 30)
		}
		t.Log("4. what they have of others' keys runs out")
		l.retire(t)
		for _, name := range abc {
			f.forget(t, name, ac, l.all())
		}
		t.Log("5. the gates forget the old list, and b goes")
		for i := range 2 {
			l.replace(t, i, f.proxy(t, ac, nil, map[string]string{"a": wiring["a"], "c": wiring["c"]}))
		}
		if err := f.shards["b"].stop(); err != nil {
			t.Error(err)
		}
		l.more(t, 100)
		l.stop()
		ran := f.allExecutions(t)
		for _, key := range l.all() {
			if ran[key] != 1 {
				t.Errorf("key %s was executed %d times", key, ran[key])
			}
		}
		if len(ran) != len(l.all()) {
			t.Errorf("%d keys ran, %d were paid", len(ran), len(l.all()))
		}
		t.Logf("%d keys, %d requests, %d refused for a while", len(ran), l.requests.Load(), l.refusals.Load())
	})
}

// TestShardsChangeInWrongOrder: managers that get a list before the gates refuse what has moved, and nothing runs twice.
func TestShardsChangeInWrongOrder(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		f := newFleet(t, target, mode)
		ab, abc := []string{"a", "b"}, []string{"a", "b", "c"}
		for _, name := range ab {
			f.startShard(t, name, "--shards", "a,b")
		}
		f.startShard(t, "c", "--shards", "a,b,c")
		old := f.proxy(t, ab, nil, f.wiring())
		wantFirst(t, old, pay(newKey()), 201)
		scope := f.scope(t)
		moves := func(key string) bool { return abc[api.Owner(abc, scope, key)] == "c" }
		paid := keysOf(scope, abc, "c", 3)
		first := map[string]answer{}
		for _, key := range paid {
			first[key] = wantFirst(t, old, pay(key), 201)
		}
		for _, name := range ab {
			f.shards[name].kill()
			f.startShard(t, name, "--shards", "a,b,c")
		}
		for _, key := range paid {
			wantReplay(t, old, pay(key), first[key])
		}
		early := keysOf(scope, abc, "c", 3)
		for _, key := range early {
			refused(t, old, key)
			f.wantExecutions(t, key, 0)
		}
		old.logged(t, "another shard of the manager's list owns the key")
		stays := slices.DeleteFunc(keysOf(scope, ab, "a", 8), moves)
		for _, key := range stays {
			wantFirst(t, old, pay(key), 201)
		}
		p := f.proxy(t, abc, ab, f.wiring())
		for _, key := range paid {
			wantReplay(t, p, pay(key), first[key])
		}
		for _, key := range early {
			wantFirst(t, p, pay(key), 201)
			f.wantExecutions(t, key, 1)
		}
	})
}
