package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
)

// cliOn runs a command of several words against a manager.
func cliOn(url string, args ...string) (code int, out, errs string) {
	var stdout, stderr bytes.Buffer
	env := Environment{Stdout: &stdout, Stderr: &stderr, Getenv: func(name string) (string, bool) { return url, name == managerURLEnv }}
	code = Run(context.Background(), env, args)
	return code, stdout.String(), stderr.String()
}

// TestConflictsAreShown: two data centres ran a key. The list of conflicts, the key's entry and its history say so, and the
// doctor fails. A peer with another list needs attention as well.
func TestConflictsAreShown(t *testing.T) {
	first := jobsManager(t, "--origin", "dc2")
	second := jobsManager(t, "--origin", "dc1", "--peer", "dc2="+first)
	waitFor(t, "the first one says that it remembers no other ledger of dc1", func() bool {
		_, out, _ := cliOn(second, "ledger", "quarantine")
		return strings.Contains(out, "there is no quarantine")
	})
	for _, url := range []string{second, first} { // the first one pulls nothing, and the name decides about outcomes of one millisecond
		addr := strings.TrimPrefix(url, "http://")
		if status, body := post(t, addr, "/v1/ledger/reserve", `{"key":"run  twice","scope":"s","token":"t`+addr+`"}`); status != 201 {
			t.Fatal(status, body)
		}
		if status, body := post(t, addr, "/v1/ledger/commit", `{"key":"run  twice","scope":"s","token":"t`+addr+`","result":{"status":201,"body":"aGk="}}`); status != 200 {
			t.Fatal(status, body)
		}
	}
	waitFor(t, "the conflict is listed", func() bool {
		_, out, _ := cliOn(second, "ledger", "conflicts")
		return strings.Contains(out, "run  twice")
	})
	const outcomes = "dc1 committed 201, dc2 committed 201"
	for _, c := range []struct {
		code int
		args []string
		want string
	}{
		{0, []string{"ledger", "conflicts"}, outcomes},
		{0, []string{"ledger", "conflicts", "--json"}, `"winner":"dc1"`},
		{0, []string{"ledger", "get", "run  twice", "--scope", "s"}, "conflict: 2 data centres ran this key: " + outcomes},
		{0, []string{"ledger", "get", "run  twice", "--scope", "s", "--json"}, `"conflict":{"key":"run  twice"`},
		{0, []string{"ledger", "history", "run  twice", "--scope", "s"}, outcomes},
		{1, []string{"peers", "status"}, "other list: dc2"},
		{1, []string{"peers", "status"}, "1 of 1 peers need attention: dc2"},
		{1, []string{"peers", "status", "--json"}, "1 of 1 peers need attention: dc2"},
		{1, []string{"doctor", "--sample-seconds", "0.1"}, "fail  manager: conflicts: 1 key ran in several data centres, such as \"run  twice\""},
		{1, []string{"doctor", "--sample-seconds", "0.1"}, "fail  manager: peers: "},
	} {
		if c.args[0] == "doctor" {
			c.args = append(c.args, "--manager", second)
		}
		if code, out, errs := cliOn(second, c.args...); code != c.code || !strings.Contains(out+errs, c.want) {
			t.Errorf("%v: exit code %d, want %d and %q\n%s%s", c.args, code, c.code, c.want, out, errs)
		}
	}
	if code, out, errs := cliOn(first, "ledger", "conflicts"); code != 0 || !strings.HasPrefix(out, "no conflicts") {
		t.Errorf("without conflicts: exit code %d, %s%s", code, out, errs)
	}
	if code, out, errs := cliOn(first, "ledger", "get", "run  twice", "--scope", "s"); code != 0 || strings.Contains(out, "conflict") {
		t.Errorf("an entry without a conflict: exit code %d, %s%s", code, out, errs)
	}
}

// TestJobOfAnotherDataCentre: a submission that is repeated at another data centre is answered there with a job that it does
// not have. A look-up of that job names the data centre that has it.
func TestJobOfAnotherDataCentre(t *testing.T) {
	first := jobsManager(t, "--origin", "dc1")
	second := jobsManager(t, "--origin", "dc2", "--peer", "dc1="+first)
	submit := func(url string) (int, string) {
		t.Helper()
		req, err := http.NewRequest("POST", url+"/v1/jobs", strings.NewReader(`{"function":"f","payload":1}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", "order-1")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, gjson.GetBytes(body, "id").String()
	}
	status, id := submit(first)
	if status != 202 || id == "" {
		t.Fatal(status, id)
	}
	waitFor(t, "the outcome arrives", func() bool {
		_, out, _ := cliOn(second, "ledger", "list")
		return strings.Contains(out, "order-1")
	})
	if status, again := submit(second); status != 202 || again != id {
		t.Fatalf("repeated: %d %s, want the job %s", status, again, id)
	}
	addr := strings.TrimPrefix(second, "http://")
	for _, call := range []func() (int, string){
		func() (int, string) { return get(t, addr, "/v1/jobs/"+id) },
		func() (int, string) { return post(t, addr, "/v1/jobs/"+id+"/cancel", "{}") },
	} {
		if status, body := call(); status != 404 || !strings.Contains(body, "the data centre dc1 took this job") {
			t.Errorf("%d %s", status, body)
		}
	}
	if status, body := get(t, addr, "/v1/jobs/"+strings.Repeat("0", len(id))); status != 404 || strings.Contains(body, "data centre") {
		t.Errorf("a job of none: %d %s", status, body)
	}
}

// TestMoveToAnotherEngine: what docs/operating.md says. A ledger on the log that never had an origin gets one, and a manager on
// another engine copies what it recorded before.
func TestMoveToAnotherEngine(t *testing.T) {
	old := []string{"--store", "wal", "--data-dir", t.TempDir()}
	t.Run("before", func(t *testing.T) {
		addr := strings.TrimPrefix(jobsManager(t, old...), "http://")
		if status, body := post(t, addr, "/v1/ledger/reserve", `{"key":"k","token":"t"}`); status != 201 {
			t.Fatal(status, body)
		}
		if status, body := post(t, addr, "/v1/ledger/commit", `{"key":"k","token":"t","result":{"status":201,"body":"aGk="}}`); status != 200 {
			t.Fatal(status, body)
		}
	})
	first := jobsManager(t, append(old, "--origin", "old")...)
	second := jobsManager(t, "--store", "sqlite", "--data-dir", t.TempDir(), "--origin", "new", "--peer", "old="+first)
	waitFor(t, "the outcome is copied", func() bool {
		_, out, _ := cliOn(second, "ledger", "get", "k")
		return strings.Contains(out, "201") && strings.Contains(out, "old")
	})
}

// TestDeadPeerIsAFailure: neither the status of peers nor the doctor is content while a peer cannot be reached.
func TestDeadPeerIsAFailure(t *testing.T) {
	dead := httptest.NewServer(http.NotFoundHandler())
	dead.Close()
	url := jobsManager(t, "--origin", "dc2", "--peer", "dc1="+dead.URL)
	waitFor(t, "a call failed", func() bool {
		_, out, _ := cliOn(url, "peers", "status")
		return strings.Contains(out, "refused")
	})
	if code, _, errs := cliOn(url, "peers", "status"); code != 1 || errs != "oncegate peers: status: 1 of 1 peers need attention: dc1\n" {
		t.Errorf("exit code %d, %s", code, errs)
	}
	if code, out, _ := cliOn(url, "doctor", "--manager", url, "--sample-seconds", "0.1"); code != 1 || !strings.Contains(out, "fail  manager: peers: outcomes of dc1 are missing") {
		t.Errorf("exit code %d, %s", code, out)
	}
}

// TestQuarantineHoldsNoCommand: a manager in quarantine asks for a wait of minutes. A command says so immediately, and the
// home of a key does not depend on the ledger.
func TestQuarantineHoldsNoCommand(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(api.HeaderManager, "test")
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/v1/peers":
			fmt.Fprint(w, `{"origin":"dc1","data_centres":["dc1"],"peers":[]}`)
		case "/v1/ledger/entries":
			fmt.Fprint(w, `{"entries":[],"cursor":""}`)
		default:
			w.Header().Set("Content-Type", "application/problem+json")
			w.Header().Set("Retry-After", "600")
			w.WriteHeader(503)
			fmt.Fprint(w, `{"type":"urn:oncegate:problem:quarantine","title":"Quarantine","status":503,"code":"quarantine","detail":"the ledger may have forgotten this key"}`)
		}
	}))
	defer s.Close()
	if code, out, errs := cliOn(s.URL, "ledger", "get", "k"); code != 1 || out != "" || errs != "oncegate ledger: get: manager: quarantine: the ledger may have forgotten this key\n" {
		t.Errorf("get: exit code %d, %s%s", code, out, errs)
	}
	if code, out, errs := cliOn(s.URL, "ledger", "home", "k"); code != 0 || !strings.HasPrefix(out, "dc1: the manager's own data centre") {
		t.Errorf("home: exit code %d, %s%s", code, out, errs)
	}
}
