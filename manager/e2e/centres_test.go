package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// dataCentre is a manager with its links to others.
type dataCentre struct {
	t     *testing.T
	name  string
	args  []string
	links map[string]*link // by the peer's name
	p     *process
}

func newCentres(t *testing.T, names []string, args ...string) map[string]*dataCentre {
	t.Helper()
	all := make(map[string]*dataCentre)
	for _, name := range names {
		dc := &dataCentre{t: t, name: name, links: make(map[string]*link)}
		dc.args = append([]string{"--data-dir", t.TempDir(), "--origin", name}, args...)
		for _, peer := range names {
			if peer != name {
				dc.links[peer] = newLink(t)
				dc.args = append(dc.args, "--peer", peer+"=http://"+dc.links[peer].port.Address)
			}
		}
		all[name] = dc
	}
	for _, dc := range all {
		dc.p = startManager(t, dc.args...)
	}
	return all
}

// connect sets the links of all.
func connect(all map[string]*dataCentre, up bool) {
	for _, dc := range all {
		for peer, l := range dc.links {
			l.lead(all[peer].p.addr["api"])
			if up {
				l.set(open)
			} else {
				l.set(refused)
			}
		}
	}
}

func (dc *dataCentre) call(method, path, body string, out any) int {
	dc.t.Helper()
	req, err := http.NewRequest(method, "http://"+dc.p.addr["api"]+path, strings.NewReader(body))
	if err != nil {
		dc.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		dc.t.Fatalf("%s: %s: %v", dc.name, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && out != nil {
		err = json.Unmarshal(b, out)
	}
	if err != nil {
		dc.t.Fatalf("%s: %s: %v: %s", dc.name, path, err, b)
	}
	return resp.StatusCode
}

// run reserves a key and records its outcome.
func (dc *dataCentre) run(key, body string) {
	dc.t.Helper()
	token := dc.name + "-" + key
	if s := dc.call("POST", "/v1/ledger/reserve", fmt.Sprintf(`{"key":%q,"token":%q}`, key, token), nil); s != 201 {
		dc.t.Fatalf("%s: reserve %s: %d", dc.name, key, s)
	}
	if s := dc.call("POST", "/v1/ledger/commit", fmt.Sprintf(`{"key":%q,"token":%q,"result":{"status":201,"body":%q}}`, key, token, base64.StdEncoding.EncodeToString([]byte(body))), nil); s != 200 {
		dc.t.Fatalf("%s: commit %s: %d", dc.name, key, s)
	}
}

// retry returns the recorded body of a key, in base64, "" while there is none.
func (dc *dataCentre) retry(key string) string {
	dc.t.Helper()
	var entry struct {
		Result struct{ Body string }
	}
	if dc.call("GET", "/v1/ledger/entries/"+key, "", &entry) != 200 {
		return ""
	}
	return entry.Result.Body
}

// conflicts returns the listing without what passes with time.
func (dc *dataCentre) conflicts() string {
	dc.t.Helper()
	var list struct {
		Conflicts []struct {
			Key, Scope, Winner string
			Outcomes           []struct {
				Origin string
				Result struct{ Body string }
			}
		}
	}
	dc.call("GET", "/v1/ledger/conflicts", "", &list)
	var b strings.Builder
	for _, c := range list.Conflicts {
		outcomes := map[string]string{}
		for _, o := range c.Outcomes {
			outcomes[o.Origin] = o.Result.Body
		}
		fmt.Fprintln(&b, c.Key, c.Scope, c.Winner, outcomes)
	}
	return b.String()
}

func (dc *dataCentre) digests(origin string) string {
	dc.t.Helper()
	var d struct{ Digests json.RawMessage }
	if s := dc.call("GET", "/v1/ledger/digests?span_ms=1073741824&origin="+origin, "", &d); s != 200 {
		dc.t.Fatalf("digests: %d", s)
	}
	return string(d.Digests)
}

func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * patience); !cond(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// TestThreeDataCentres: real managers, a partition of all from all, kill -9, and the same keys run everywhere.
func TestThreeDataCentres(t *testing.T) {
	t.Parallel()
	names := []string{"dc1", "dc2", "dc3"}
	all := newCentres(t, names)
	connect(all, true)
	trusted(t, all)
	for _, dc := range all {
		dc.run("before-"+dc.name, "b")
	}
	until(t, "all have all", func() bool {
		for _, dc := range all {
			for _, name := range names {
				if dc.retry("before-"+name) == "" {
					return false
				}
			}
		}
		return true
	})
	connect(all, false)
	const n = 20
	for i := range n {
		for _, dc := range all {
			dc.run(fmt.Sprintf("both-%d", i), "both "+dc.name)
			dc.run(fmt.Sprintf("own-%s-%d", dc.name, i), "own")
		}
	}
	all["dc2"].p.kill() // with SIGKILL
	all["dc2"].p = startManager(t, all["dc2"].args...)
	if got := all["dc1"].retry("own-dc2-0"); got != "" {
		t.Errorf("a partition lets through %q", got)
	}
	connect(all, true)
	healed := time.Now()
	until(t, "all conflicts are everywhere", func() bool {
		for _, dc := range all {
			if got := dc.conflicts(); strings.Count(got, "\n") != n || strings.Count(got, "dc1:") != n || strings.Count(got, "dc2:") != n || strings.Count(got, "dc3:") != n {
				return false
			}
		}
		return true
	})
	t.Logf("all conflicts were everywhere %v after the partition", time.Since(healed).Round(time.Millisecond))
	until(t, "all digests are the same", func() bool {
		for _, origin := range names {
			for _, dc := range all {
				if dc.digests(origin) != all["dc1"].digests(origin) {
					return false
				}
			}
		}
		return true
	})
	want := all["dc1"].conflicts()
	for _, dc := range all {
		if got := dc.conflicts(); got != want {
			t.Errorf("%s lists\n%sdc1\n%s", dc.name, got, want)
		}
		for i := range n {
			key := fmt.Sprintf("both-%d", i)
			if a, b := dc.retry(key), all["dc1"].retry(key); a != b {
				t.Errorf("%s: %s answers %q, dc1 %q", key, dc.name, a, b)
			}
		}
		until(t, dc.name+" logs a conflict", func() bool { return strings.Contains(dc.p.stderr.String(), "two data centres ran the same key") })
	}
	run := func(args ...string) (code int, out string) {
		return oncegate(t, append(args, "--manager", "http://"+all["dc1"].p.addr["api"])...)
	}
	code, out := run("peers", "status")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != 0 || len(lines) != 2 || !strings.HasPrefix(lines[0], "dc2 ") || !strings.HasPrefix(lines[1], "dc3 ") {
		t.Fatalf("peers status: %d %q", code, out)
	}
	for _, want := range []string{"0 entries", " s ago", "same list"} {
		if !strings.Contains(lines[0], want) {
			t.Errorf("peers status lacks %q: %q", want, out)
		}
	}
	code, out = run("ledger", "home", "client-7:1:0123456789abcdef")
	home := names[api.Home(names, "", "client-7:2:fedcba9876543210")]
	if code != 0 || !strings.HasPrefix(out, home+": ") || !strings.Contains(out, `the client id "client-7" of the key decides, among dc1, dc2, dc3`) {
		t.Errorf("ledger home: %d %q, want %s", code, out, home)
	}
	if code, out = run("ledger", "home", "k", "--scope", "s", "--json"); code != 0 || gjson.Get(out, "home").String() != names[api.Home(names, "s", "k")] {
		t.Errorf("ledger home: %d %q", code, out)
	}
	if code, out = run("ledger", "home", " k"); code != 2 || !strings.Contains(out, "printable ASCII") {
		t.Errorf("ledger home of no key: %d %q", code, out)
	}
	if code, out = run("ledger", "get", "own-dc2-0"); code != 0 || !strings.Contains(out, "origin ") || !strings.Contains(out, "dc2") {
		t.Errorf("ledger get: %d %q", code, out)
	}
	if code, out = run("ledger", "conflicts"); code != 0 || strings.Count(out, "\nboth-") != n || strings.Count(out, " committed 201, ") != 2*n {
		t.Errorf("ledger conflicts: %d %q", code, out)
	}
	if code, out = run("ledger", "get", "both-0"); code != 0 || !strings.Contains(out, "conflict: 3 data centres ran this key: ") {
		t.Errorf("ledger get of a conflict: %d %q", code, out)
	}
	if code, out = run("ledger", "list"); code != 0 || !strings.Contains(out, "ORIGIN") {
		t.Errorf("ledger list: %d %q", code, out)
	}
}

// TestPeersProveWhoTheyAre: a manager with tokens gives changes only to callers with the word peer.
func TestPeersProveWhoTheyAre(t *testing.T) {
	t.Parallel()
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "tokens")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	const gate, peer = "gate-token-0123456789", "peer-token-0123456789"
	b := startManager(t, "--data-dir", t.TempDir(), "--origin", "dc2", "--auth-token-file", file(gate+" gate\n"+peer+" peer\n"))
	said := "" // by the last call
	call := func(token, method, path, body string) int {
		req, _ := http.NewRequest(method, "http://"+b.addr["api"]+path, strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		said = string(text)
		return resp.StatusCode
	}
	if s := call(gate, "POST", "/v1/ledger/commit", `{"key":"k","token":"t","result":{"status":200}}`); s != 200 {
		t.Fatalf("commit: %d", s)
	}
	for query, want := range map[string]int{"origin=&after=&wait_ms=": 200, "origin=dc2&limit=&from_ms=&to_ms=": 200, "after=x": 400, "wait_ms=x": 400, "from_ms=5&to_ms=4": 400, "origin=dc3": 404} {
		if s := call(peer, "GET", "/v1/ledger/changes?"+query, ""); s != want {
			t.Errorf("changes with %s: %d, want %d", query, s, want)
		}
	}
	for path, want := range map[string]string{"conflicts?cursor=no": `cursor: \"no\": must be`, "changes?after=no": `after: \"no\": must be`} {
		if s := call(peer, "GET", "/v1/ledger/"+path, ""); s != 400 || !strings.Contains(said, want) {
			t.Errorf("%s: %d %s", path, s, said)
		}
	}
	for token, want := range map[string]int{"": 401, gate: 403, peer: 200} {
		if s := call(token, "GET", "/v1/ledger/changes?origin=dc2&after=", ""); s != want {
			t.Errorf("changes with %q: %d", token, s)
		}
	}
	status := func(p *process) string {
		_, out := oncegate(t, "peers", "status", "--manager", "http://"+p.addr["api"])
		return out
	}
	args := []string{"--origin", "dc1", "--peer", "dc2=http://" + b.addr["api"]}
	wrong := startManager(t, append(args, "--data-dir", t.TempDir(), "--peer-token-file", file(gate))...)
	until(t, "the wrong token is reported", func() bool { return strings.Contains(status(wrong), "403") })
	right := &dataCentre{t: t, name: "dc1", p: startManager(t, append(args, "--data-dir", t.TempDir(), "--peer-token-file", file("dc2 "+peer))...)}
	until(t, "the outcome arrives", func() bool { return right.call("GET", "/v1/ledger/entries/k", "", nil) == 200 })
}

// TestStatusWithoutPeers: silence would look the same for a manager without peers and a command that failed.
func TestStatusWithoutPeers(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"--origin", "dc1"}} {
		p := startManager(t, append([]string{"--data-dir", t.TempDir()}, args...)...)
		code, out := oncegate(t, "peers", "status", "--manager", "http://"+p.addr["api"])
		if want := "no peers: this manager has no --peer\n"; code != 0 || out != want {
			t.Errorf("%q: %d %q, want %q", args, code, out, want)
		}
	}
}

// TestScheduleOfTwoDataCentres: both have the same schedule. The home of its name enqueues the job of an instant, and the other
// one does not.
func TestScheduleOfTwoDataCentres(t *testing.T) {
	t.Parallel()
	deep.Only(t) // an instant may be a minute away
	all := newCentres(t, []string{"dc1", "dc2"}, "--admin", "127.0.0.1:0")
	connect(all, true)
	trusted(t, all)
	field := func(dc, name string) string {
		_, body := get(t, all[dc].p.addr["api"], "/v1/schedules/report")
		return gjson.Get(body, name).String()
	}
	for _, dc := range all {
		if status := dc.call("PUT", "/v1/schedules/report", `{"cron":"* * * * *","function":"report","data_centers":"home"}`, nil); status != 201 {
			t.Fatalf("%s: %d", dc.name, status)
		}
	}
	home := field("dc1", "home")
	other := map[string]string{"dc1": "dc2", "dc2": "dc1"}[home]
	if other == "" || field("dc2", "home") != home {
		t.Fatalf("homes %q and %q", home, field("dc2", "home"))
	}
	until(t, "the home has a job", func() bool { return field(home, "last_job") != "" })
	instant := field(home, "last_at")
	until(t, "the other one is past the instant", func() bool { return field(other, "next_at") > instant })
	if job, missed := field(other, "last_job"), field(other, "missed_instants"); job != "" || missed != "0" {
		t.Errorf("%s has the job %q, and missed %s", other, job, missed)
	}
	if status, jobs := get(t, all[other].p.addr["api"], "/v1/jobs"); status != 200 || gjson.Get(jobs, "jobs.#").Int() != 0 {
		t.Errorf("%s has %s", other, jobs)
	}
	if _, page := get(t, all[other].p.addr["admin"], "/ui/schedules"); !strings.Contains(page, "in the data centre "+home) {
		t.Errorf("the page of %s does not name the home %s: %s", other, home, page)
	}
}
