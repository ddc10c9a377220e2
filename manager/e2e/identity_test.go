package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ship"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// trusted waits until all data centres take new keys: their peers have said that they remember no earlier ledgers.
func trusted(t *testing.T, all map[string]*dataCentre) {
	t.Helper()
	for name, dc := range all {
		until(t, name+" takes new keys", func() bool { return dc.quarantine() == 0 })
	}
}

// takesKeys waits until a manager with peers takes new keys: its peers have said that they remember no earlier ledger.
func takesKeys(t *testing.T, p *process) {
	t.Helper()
	waitFor(t, "it takes new keys", func() bool {
		status, stats := get(t, p.addr["api"], "/v1/ledger/stats")
		return status == 200 && !gjson.Get(stats, "quarantine_ms").Exists()
	})
}

// quarantine is for how many milliseconds a data centre takes no new keys.
func (dc *dataCentre) quarantine() int64 {
	dc.t.Helper()
	var stats struct {
		Quarantine int64 `json:"quarantine_ms"`
	}
	dc.call("GET", "/v1/ledger/stats", "", &stats)
	return stats.Quarantine
}

// reserve asks whether a key may run.
func (dc *dataCentre) reserve(key, token, durability string) (status int, code string) {
	dc.t.Helper()
	var p struct{ Code string }
	body := fmt.Sprintf(`{"key":%q,"token":%q}`, key, token)
	if durability != "" {
		body = fmt.Sprintf(`{"key":%q,"token":%q,"durability":%q}`, key, token, durability)
	}
	status = dc.call("POST", "/v1/ledger/reserve", body, &p)
	return status, p.Code
}

// dir is the directory of its data.
func (dc *dataCentre) dir() string { return dc.args[1] }

// TestDataCentreThatLostItsVolume: a data centre comes back with an empty directory under its old origin. It runs none of
// its keys again, and gets back what the others hold.
func TestDataCentreThatLostItsVolume(t *testing.T) {
	t.Parallel()
	all := newCentres(t, []string{"dc1", "dc2", "dc3"}, "--compare-interval-seconds", "1")
	connect(all, true)
	trusted(t, all)
	dc := all["dc1"]
	const n = 20
	for i := range n {
		dc.run(fmt.Sprint("lost-", i), fmt.Sprint("first ", i))
	}
	until(t, "the others have all", func() bool {
		return all["dc2"].digests("dc1") == dc.digests("dc1") && all["dc3"].digests("dc1") == dc.digests("dc1")
	})
	want := all["dc2"].digests("dc1")

	dc.p.kill()
	if err := os.RemoveAll(dc.dir()); err != nil {
		t.Fatal(err)
	}
	dc.p = startManager(t, dc.args...)
	for name, other := range all { // nobody reaches it yet
		if name != "dc1" {
			other.links["dc1"].lead(dc.p.addr["api"])
		}
	}
	for i := range n {
		if status, code := dc.reserve(fmt.Sprint("lost-", i), "again", ""); status != 503 && status != 200 {
			t.Errorf("a key that it lost: %d %s", status, code)
		}
	}
	until(t, "it gets its outcomes back", func() bool { return dc.digests("dc1") == want })
	for i := range n {
		if status, code := dc.reserve(fmt.Sprint("lost-", i), "again", ""); status != 200 {
			t.Errorf("a key that it got back: %d %s", status, code)
		}
	}
	if status, code := dc.reserve("unknown", "x", ""); status != 503 || code != string(api.CodeQuarantine) {
		t.Errorf("a key that nobody knows: %d %s", status, code)
	}
	until(t, "its log says why", func() bool {
		log := dc.p.stderr.String()
		return strings.Contains(log, "the ledger forgot something") && strings.Contains(log, "remembers another one in its place")
	})
	until(t, "the others take it for its successor", func() bool {
		return strings.Contains(all["dc2"].p.stderr.String(), "a peer has another ledger than before")
	})
	all["dc2"].run("later", "b") // the others continue, and it hears of it
	until(t, "it has the others' outcomes", func() bool { return dc.retry("later") != "" })
	if code := dc.p.stop(t); code != 0 {
		t.Fatal(dc.p.stderr)
	}
	code, out := oncegate(t, "quarantine", "end", "--data-dir", dc.dir())
	if why := gjson.Get(out, "why.0").String(); code != 0 || !strings.Contains(why, "remembers another one in its place") {
		t.Errorf("%d %s", code, out)
	}
	dc.p = startManager(t, dc.args...)
	connect(all, true)
	dc.run("after-the-end", "b")
}

// TestDataCentreThatWentBack: the machine of a data centre is put back to an earlier state.
func TestDataCentreThatWentBack(t *testing.T) {
	t.Parallel()
	all := newCentres(t, []string{"dc1", "dc2"}, "--compare-interval-seconds", "1")
	connect(all, true)
	trusted(t, all)
	dc := all["dc1"]
	dc.run("early", "b")
	if code := dc.p.stop(t); code != 0 {
		t.Fatal(dc.p.stderr)
	}
	older := copyFiles(t, dc.dir())
	dc.p = startManager(t, dc.args...)
	connect(all, true)
	dc.run("late", "b")
	until(t, "the other has it", func() bool { return all["dc2"].retry("late") != "" })
	dc.p.kill()
	dc.args[1] = older
	dc.p = startManager(t, dc.args...)
	connect(all, true)
	until(t, "it notices", func() bool { return dc.quarantine() > 0 })
	until(t, "it gets back what it lacks", func() bool { return dc.retry("late") != "" })
	if status, _ := dc.reserve("late", "again", ""); status != 200 {
		t.Errorf("late: %d", status)
	}
	if log := dc.p.stderr.String(); !strings.Contains(log, "put back to an earlier state") {
		t.Error(log)
	}
}

// TestTwoManagersOfOneOrigin: a second manager is started with the origin of a running one.
func TestTwoManagersOfOneOrigin(t *testing.T) {
	deep.Quick(t)
	t.Parallel()
	all := newCentres(t, []string{"dc1", "dc2", "dc3"})
	connect(all, true)
	trusted(t, all)
	twin := &dataCentre{t: t, name: "dc1", links: make(map[string]*link)}
	twin.args = []string{"--data-dir", t.TempDir(), "--origin", "dc1"}
	for _, peer := range []string{"dc2", "dc3"} {
		twin.args = append(twin.args, "--peer", peer+"=http://"+all[peer].p.addr["api"])
	}
	twin.p = startManager(t, twin.args...)
	attempt := func(i int) {
		t.Helper()
		ran := 0
		for name, dc := range map[string]*dataCentre{"dc1": all["dc1"], "twin": twin, "dc2": all["dc2"]} {
			if status, _ := dc.reserve(fmt.Sprint("global-", i), name, "global"); status == 201 {
				ran++
			}
		}
		if ran != 1 {
			t.Errorf("%d attempts got a global key", ran)
		}
		if status, code := twin.reserve(fmt.Sprint("local-", i), "t", ""); status != 503 || code != string(api.CodeQuarantine) {
			t.Errorf("the second manager takes a key: %d %s", status, code)
		}
	}
	for i := range 10 {
		attempt(i)
	}
	until(t, "the second one says so", func() bool { return strings.Contains(twin.p.stderr.String(), "ALARM: two ledgers have the origin dc1") })
	var status struct{ Peers []struct{ Error string } }
	twin.call("GET", "/v1/peers", "", &status)
	if len(status.Peers) != 2 || !strings.Contains(status.Peers[0].Error+status.Peers[1].Error, "two ledgers have the origin dc1") {
		t.Errorf("%+v", status)
	}
	// An operator who takes the quarantine for one after a loss ends it. That changes nothing while the other one answers.
	if code := twin.p.stop(t); code != 0 {
		t.Fatal(twin.p.stderr)
	}
	if code, out := oncegate(t, "quarantine", "end", "--data-dir", twin.dir()); code != 0 {
		t.Fatal(out)
	}
	twin.p = startManager(t, twin.args...)
	until(t, "it is kept from new keys again", func() bool { return twin.quarantine() > 0 })
	for i := range 5 {
		attempt(100 + i)
	}
	all["dc1"].run("alive", "b")
}

// TestPlaceOfAnotherLedger: a ledger does not begin where another one's copies are, and ships nothing there.
func TestPlaceOfAnotherLedger(t *testing.T) {
	t.Parallel()
	_, bucket, env := newBucket(t)
	first := env.startManager(t, "--data-dir", t.TempDir(), "--ship-to", shipBucket, "--ship-interval-seconds", "0.05")
	commitKey(t, first.addr["api"], "k")
	shippedSince(t, bucket, time.Now().Add(-time.Hour))
	owner, err := ship.LedgerOf(t.Context(), bucket)
	if err != nil || owner == "" {
		t.Fatal(owner, err)
	}
	if code := first.stop(t); code != 0 {
		t.Fatal(first.stderr)
	}
	empty := t.TempDir()
	for range 2 {
		code, out := env.oncegate(t, "serve", "--data-dir", empty, "--listen", "127.0.0.1:0", "--ship-to", shipBucket)
		if code != 2 || !strings.Contains(out, "must have no copies of another ledger, and has those of "+owner) {
			t.Errorf("exit code %d: %s", code, out)
		}
	}
	// A ledger that was somewhere else before.
	other := t.TempDir()
	p := env.startManager(t, "--data-dir", other)
	commitKey(t, p.addr["api"], "other")
	if code := p.stop(t); code != 0 {
		t.Fatal(p.stderr)
	}
	p = env.startManager(t, "--data-dir", other, "--ship-to", shipBucket, "--ship-interval-seconds", "0.05", "--ship-lease-seconds", "1")
	until(t, "it says so", func() bool {
		return strings.Contains(p.stderr.String(), "the prefix has the copies of the ledger "+owner)
	})
	commitKey(t, p.addr["api"], "serves")
	if code := p.stop(t); code != 0 {
		t.Fatal(p.stderr)
	}
	restored := t.TempDir() + "/restored"
	if code, out := env.oncegate(t, "restore", "--from", shipBucket, "--data-dir", restored); code != 0 {
		t.Fatal(out)
	}
	p = env.startManager(t, "--data-dir", restored)
	if status, body := get(t, p.addr["api"], "/v1/ledger/entries/k"); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if status, _ := get(t, p.addr["api"], "/v1/ledger/entries/other"); status == 200 {
		t.Error("the prefix has another ledger's keys")
	}
}

// TestBucketKnowsMore: a directory that was put back to an earlier state notices by its copies, even when its log has come further
// than them. It then remembers nothing for the window of its logs, which is longer than a key lasts.
func TestBucketKnowsMore(t *testing.T) {
	t.Parallel()
	_, bucket, env := newBucket(t)
	dir := t.TempDir()
	start := func(dir string) *process {
		return env.startManager(t, "--data-dir", dir, "--admin", "127.0.0.1:0", "--ship-to", shipBucket, "--ship-interval-seconds", "0.05", "--ship-lease-seconds", "1")
	}
	p := start(dir)
	commitKey(t, p.addr["api"], "early")
	mustAnswer(t, 201, "PUT", "http://"+p.addr["api"]+"/v1/logs/payments", `{"window_ms":36000000}`)
	if code := p.stop(t); code != 0 {
		t.Fatal(p.stderr)
	}
	older := copyFiles(t, dir)
	p = start(dir)
	before := nextMillisecond(t)
	commitKey(t, p.addr["api"], "late")
	shippedSince(t, bucket, before)
	p.kill()
	p = env.startManager(t, "--data-dir", older)
	for i := range 30 {
		commitKey(t, p.addr["api"], fmt.Sprint("new ", i))
	}
	if code := p.stop(t); code != 0 {
		t.Fatal(p.stderr)
	}
	p = start(older)
	wantQuarantine(t, "POST", "http://"+p.addr["api"]+"/v1/ledger/reserve", `{"key":"late","token":"again"}`) // from its first answer on
	if log := p.stderr.String(); strings.Count(log, "put back to an earlier state: the copy in object storage remembers it") != 1 {
		t.Error(log)
	}
	if status, body := get(t, p.addr["api"], "/v1/ledger/entries/early"); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if _, metrics := get(t, p.addr["admin"], "/metrics"); !strings.Contains(metrics, "oncegate_quarantine_remaining_seconds 35") {
		t.Errorf("the quarantine is not that of the log's window: %.300s", metrics[strings.Index(metrics, "oncegate_quarantine_remaining_seconds"):])
	}
}
