package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/client/admin"
)

// ledgerCLI runs a command against a manager.
func ledgerCLI(url string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	env := Environment{Stdout: &out, Stderr: &errs, Getenv: func(name string) (string, bool) { return url, name == managerURLEnv }}
	code = Run(context.Background(), env, append([]string{"ledger"}, args...))
	return code, out.String(), errs.String()
}

// unknownKey leaves a key whose outcome is unknown.
func unknownKey(t *testing.T, url, scope, key string) {
	t.Helper()
	req := api.ReserveRequest{Key: key, Scope: scope, Token: "t", Fingerprint: "f"}
	for _, path := range []string{api.PathReserve, api.PathUnknown} {
		resp, err := http.Post(url+path, api.ContentTypeJSON, bytes.NewReader(schema.Append(nil, &req)))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode >= 300 {
			t.Fatalf("%s: %d", path, resp.StatusCode)
		}
	}
}

func TestOperatorsReadTheLifeOfAKey(t *testing.T) {
	url := jobsManager(t)
	unknownKey(t, url, "shop/pay", "order-1")
	again := api.ReserveRequest{Key: "order-1", Scope: "shop/pay", Token: "u", Fingerprint: "other"}
	resp, err := http.Post(url+api.PathReserve, api.ContentTypeJSON, bytes.NewReader(schema.Append(nil, &again)))
	if err != nil || resp.Body.Close() != nil || resp.StatusCode != 422 {
		t.Fatal(resp.StatusCode, err)
	}
	code, out, errs := ledgerCLI(url, "history", "order-1", "--scope", "shop/pay")
	const stamp = `\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ`
	want := regexp.MustCompile(`^WHAT +COUNT +FIRST +LAST +FROM
reserve +1 +` + stamp + ` +` + stamp + ` +127.0.0.1
unknown +1 +` + stamp + ` +` + stamp + ` +127.0.0.1
mismatch: 1
last mismatch: reserve from 127.0.0.1 at ` + stamp + `, fingerprint other, recorded f
since ` + stamp + `, when this manager started
$`)
	if code != 0 || errs != "" || !want.MatchString(out) {
		t.Errorf("%d %s\n%s", code, errs, out)
	}
	if code, out, errs = ledgerCLI(url, "history", "order-1"); code != 0 || errs != "" || !strings.HasPrefix(out, "this manager has seen no call with this key without a scope, or has forgotten it\nthe key is in the scope \"shop/pay\"; add --scope\nsince ") {
		t.Errorf("another scope: %d %s\n%s", code, errs, out)
	}
	code, out, errs = ledgerCLI(url, "history", "order-1", "--scope", "shop/pay", "--json")
	var h admin.EntryHistory
	if err := json.Unmarshal([]byte(out), &h); code != 0 || errs != "" || err != nil || len(h.Changes) != 2 || h.Mismatch == nil || h.Outcomes["mismatch"] != 1 {
		t.Errorf("%d %s %v\n%s", code, errs, err, out)
	}
	if code, _, errs = ledgerCLI(url, "history"); code != 2 || !strings.Contains(errs, `must be "history KEY"`) {
		t.Errorf("without a key: %d %s", code, errs)
	}
}

// TestKeyWithoutScopeNamesItsScopes: a key of several scopes is no missing key.
func TestKeyWithoutScopeNamesItsScopes(t *testing.T) {
	url := jobsManager(t)
	for i := range 7 {
		unknownKey(t, url, fmt.Sprint("shop", i), "order-7")
	}
	unknownKey(t, url, "bank", "order-2")
	unknownKey(t, url, "shop", "order-2")
	for _, c := range []struct {
		want string
		args []string
	}{
		{`get: no entry for "order-2" without a scope; it is in 2 scopes: "bank", "shop"; add --scope`, []string{"get", "order-2"}},
		{"get: no entry for \"order-7\" without a scope; it is in 7 scopes, see `oncegate ledger list --key order-7`; add --scope", []string{"get", "order-7"}},
		{`get: manager: not-found: the ledger does not remember such an entry (any more)`, []string{"get", "order-2", "--scope", "other"}},
	} {
		code, out, errs := ledgerCLI(url, c.args...)
		if code != 1 || out != "" || errs != "oncegate ledger: "+c.want+"\n" {
			t.Errorf("%v: exit code %d, %s%s, want 1, %s", c.args, code, out, errs, c.want)
		}
	}
	code, out, errs := ledgerCLI(url, "history", "order-2")
	if want := "this manager has seen no call with this key without a scope, or has forgotten it\nthe key is in 2 scopes: \"bank\", \"shop\"; add --scope\nsince "; code != 0 || errs != "" || !strings.HasPrefix(out, want) {
		t.Errorf("history: exit code %d, %s%s, want %s", code, out, errs, want)
	}
	code, out, errs = ledgerCLI(url, "list", "--key", "order-7")
	if code != 0 || errs != "" || strings.Count(out, "order-7") != 7 || strings.Contains(out, "order-2") {
		t.Errorf("list: exit code %d, %s%s", code, out, errs)
	}
	if code, _, errs = ledgerCLI(url, "list", "--key", "a "); code != 2 || !strings.Contains(errs, "must be 1 to 255 bytes of printable ASCII") {
		t.Errorf("list of a bad key: exit code %d, %s", code, errs)
	}
}

// TestSearchGoesOnOverEmptyPages: a manager looks through a bounded number of entries for each page, so most pages of a rare
// key are empty.
func TestSearchGoesOnOverEmptyPages(t *testing.T) {
	found := `{"key":"k","scope":"shop","state":"committed","age_ms":1,"expires_in_ms":1}`
	pages := map[string]string{
		"": `{"entries":[],"cursor":"1"}`, "1": `{"entries":[],"cursor":"2"}`, "2": `{"entries":[` + found + `],"cursor":"3"}`, "3": `{"entries":[],"cursor":""}`,
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(api.HeaderManager, "test")
		if r.URL.Path != "/v1/ledger/entries" {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(404)
			fmt.Fprint(w, `{"type":"urn:oncegate:problem:not-found","title":"Not found","status":404,"code":"not-found","detail":"none"}`)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, pages[r.URL.Query().Get("cursor")])
	}))
	defer s.Close()
	if code, _, errs := ledgerCLI(s.URL, "get", "k"); code != 1 || !strings.HasSuffix(errs, "it is in the scope \"shop\"; add --scope\n") {
		t.Errorf("get: exit code %d, %s", code, errs)
	}
	if code, out, errs := ledgerCLI(s.URL, "list", "--key", "k"); code != 0 || !strings.Contains(out, "shop") || strings.Contains(out, "--cursor") {
		t.Errorf("list: exit code %d, %s%s", code, out, errs)
	}
	if code, out, errs := ledgerCLI(s.URL, "list", "--key", "k", "--limit", "1"); code != 0 || !strings.Contains(out, "shop") || !strings.Contains(out, "--cursor 3") {
		t.Errorf("list of one: exit code %d, %s%s", code, out, errs)
	}
}

func TestOperatorsListAndResolveKeys(t *testing.T) {
	url := jobsManager(t)
	for _, key := range []string{"order 1", "order-2", "order-3", ".."} {
		unknownKey(t, url, "shop/pay", key)
	}
	unknownKey(t, url, "", "bare")
	// must runs a command that succeeds and returns its output with times blotted out.
	times := regexp.MustCompile(`\b(\d+m)?\d+(\.\d+)?m?s\b`)
	must := func(args ...string) string {
		t.Helper()
		code, out, errs := ledgerCLI(url, args...)
		if code != 0 || errs != "" {
			t.Fatalf("oncegate ledger %v: exit code %d, %s", args, code, errs)
		}
		return regexp.MustCompile(` +`).ReplaceAllString(times.ReplaceAllString(out, "TIME"), " ")
	}
	if got := must("list", "--state", "unknown"); strings.Count(got, " unknown TIME TIME\n") != 5 || !strings.HasPrefix(got, "KEY SCOPE STATE AGE EXPIRES IN STATUS JOB\n") {
		t.Errorf("list:\n%s", got)
	}
	if got := must("list", "--state", "pending"); strings.Count(got, "\n") != 1 {
		t.Errorf("list of pending ones:\n%s", got)
	}
	page := must("list", "--limit", "1")
	cursor := strings.TrimSpace(page[strings.Index(page, "--cursor ")+len("--cursor "):])
	if got := must("list", "--limit", "1", "--cursor", cursor); strings.Count(got, " unknown ") != 1 { // those of one millisecond are in any order
		t.Errorf("second page:\n%s", got)
	}
	const unresolved = "key order 1\nscope shop/pay\nstate unknown\nage TIME\nexpires in TIME\nfingerprint f\n"
	if got := must("get", "order 1", "--scope", "shop/pay"); got != unresolved {
		t.Errorf("get:\n%s", got)
	}

	file := filepath.Join(t.TempDir(), "answer")
	if err := os.WriteFile(file, []byte(`{"paid":true}`), 0o600); err != nil {
		t.Fatal(err)
	}
	const scope = "--scope=shop/pay"
	if got := must("resolve", "order 1", scope, "--as", "committed", "--status", "201", "--header", "Content-Type: application/json", "--body-file", file); !strings.Contains(got, "state committed\n") {
		t.Errorf("resolve:\n%s", got)
	}
	if got := must("get", "order 1", scope); !strings.HasSuffix(got, "status 201\nheader content-type: application/json\nbody {\"paid\":true}\n") {
		t.Errorf("get of a resolved one:\n%s", got)
	}
	must("resolve", "order-2", scope, "--as", "rejected", "--status", "402", "--ttl-seconds", "3600")
	if got := must("get", "order-2", scope); !strings.Contains(got, "status 402\nbody not recorded\n") {
		t.Errorf("get of one whose answer is not there:\n%s", got)
	}
	if got := must("resolve", "order-3", scope, "--as", "released"); !strings.Contains(got, "state released\n") || strings.Contains(got, "expires") {
		t.Errorf("release:\n%s", got)
	}
	if err := os.WriteFile(file, []byte(""), 0o600); err != nil {
		t.Fatal(err)
	}
	var e admin.Entry
	if err := json.Unmarshal([]byte(must("resolve", "..", scope, "--as", "committed", "--status", "204", "--body-file", file, "--json")), &e); err != nil || e.Key != ".." || e.Status != 204 {
		t.Errorf("%+v %v", e, err)
	}
	var page1 admin.EntryPage
	if err := json.Unmarshal([]byte(must("list", "--json")), &page1); err != nil || len(page1.Entries) != 4 {
		t.Errorf("%+v %v", page1, err)
	}

	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{2, `a command is missing, see oncegate ledger --help`, nil},
		{2, `unknown command "show", see oncegate ledger --help`, []string{"show"}},
		{2, `get: 0 arguments: must be "get KEY"`, []string{"get"}},
		{2, `get: key: " a": must be 1 to 255 bytes of printable ASCII without a blank at either end`, []string{"get", " a"}},
		{2, `get: scope: "a b": must be at most 255 bytes of visible ASCII`, []string{"get", "k", "--scope", "a b"}},
		{2, `list: --state "gone": must be one of pending, committed, rejected, unknown`, []string{"list", "--state", "gone"}},
		{2, `list: manager: invalid-request: cursor: must be the cursor of the page before`, []string{"list", "--cursor", "x"}},
		{1, `get: no entry for "none" in any scope: the ledger does not know the key, or no longer does`, []string{"get", "none"}},
		{1, `get: manager: not-found: the ledger does not remember such an entry (any more)`, []string{"get", "none", scope}},
		{1, `get: no entry for "order 1" without a scope; it is in the scope "shop/pay"; add --scope`, []string{"get", "order 1"}},
		{1, `resolve: no entry for "order 1" without a scope; it is in the scope "shop/pay"; add --scope`, []string{"resolve", "order 1", "--as", "released"}},
		{1, `resolve: no entry for "none" in any scope: the ledger does not know the key, or no longer does`, []string{"resolve", "none", "--as", "released"}},
		{2, `resolve: --as is missing: must be committed, rejected or released`, []string{"resolve", "bare"}},
		{2, `resolve: --as "done": must be one of committed, rejected, released`, []string{"resolve", "bare", "--as", "done"}},
		{2, `resolve: --status is missing: --as committed needs the status of the answer, 200 to 599`, []string{"resolve", "bare", "--as", "committed"}},
		{2, `resolve: --status "199": must be a whole number from 200 to 599`, []string{"resolve", "bare", "--as", "committed", "--status", "199"}},
		{2, `resolve: --as released: must be without --status`, []string{"resolve", "bare", "--as", "released", "--status", "200"}},
		{2, `resolve: --header needs --body-file`, []string{"resolve", "bare", "--as", "committed", "--status", "200", "--header", "a: b"}},
		{2, `resolve: --header "a": must be 'name: value'`, []string{"resolve", "bare", "--header", "a"}},
		{2, `resolve: --body-file: open /nowhere`, []string{"resolve", "bare", "--as", "committed", "--status", "200", "--body-file", "/nowhere"}},
		{2, `resolve: manager: invalid-request: headers: "a b": header names must be lower-case HTTP tokens`,
			[]string{"resolve", "bare", "--as", "committed", "--status", "200", "--header", "a b: c", "--body-file", file}},
		{1, `resolve: manager: conflict: the entry is committed: only one that is unknown can be resolved`,
			[]string{"resolve", "order 1", scope, "--as", "released"}},
	} {
		code, out, errs := ledgerCLI(url, c.args...)
		if code != c.code || out != "" || !strings.HasPrefix(errs, "oncegate ledger: "+c.want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: exit code %d, %s%s, want %d, %s", c.args, code, out, errs, c.code, c.want)
		}
	}
	if code, out, _ := ledgerCLI(url, "resolve", "--help"); code != 0 || !strings.HasPrefix(out, "usage: oncegate ledger resolve [flags] KEY\n") || !strings.Contains(out, "-body-file") {
		t.Errorf("help: %d %s", code, out)
	}
	if code, out, _ := ledgerCLI(url, "--help"); code != 0 || !strings.Contains(out, "resolve KEY") {
		t.Errorf("help: %d %s", code, out)
	}
}
