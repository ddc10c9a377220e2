package server

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/home"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/logs/storelogs"
	"github.com/oncegate/oncegate/manager/internal/quarantine"
	"github.com/oncegate/oncegate/manager/internal/schedules"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

// roleSite has all routes, and a token for each column of the table of roles.
type roleSite struct {
	*jobSite
	routes []httpd.Route
}

// columns are the words that the table of calls in docs/reference/CONFIGURATION.md has. It leaves out admin, which may make every call.
var columns = []string{"gate", "submitter", "worker", "worker:FUNCTION", "operator", "peer", "admin", "no word"}

// tokenFor is a token with these words; "no word" has none.
func tokenFor(words string) string {
	return "token-" + regexp.MustCompile(`\W`).ReplaceAllString(words, "-") + "-of-20-bytes"
}

func newRoleSite(t *testing.T, words ...string) *roleSite {
	t.Helper()
	var file strings.Builder
	for _, w := range words {
		fmt.Fprintln(&file, tokenFor(w), strings.NewReplacer("no word", "", "FUNCTION", "f").Replace(w))
	}
	name := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(name, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	auth, err := httpd.NewAuth(name, false)
	if err != nil {
		t.Fatal(err)
	}
	s := &roleSite{jobSite: &jobSite{store: newClockedStore()}}
	if s.ledger, err = ledger.New(s.store, ledger.Options{}); err != nil {
		t.Fatal(err)
	}
	if s.queue, err = jobs.New(s.store, jobs.Options{}); err != nil {
		t.Fatal(err)
	}
	timed, err := schedules.New(s.store, s.queue, schedules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	engine, err := storelogs.Open(t.Context(), s.store, storelogs.Options{MaxLogs: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = engine.Close()
		s.queue.Close()
		_ = s.store.Close()
	})
	restored, err := quarantine.Open("")
	if err != nil {
		t.Fatal(err)
	}
	others := slices.Concat(JobRoutes(s.ledger, s.queue), ScheduleRoutes(s.ledger, s.queue, timed), UnreadableRoutes(s.store, s.ledger, s.queue, timed, unread.New()), LogRoutes(engine), OriginRoutes(s.ledger, nil, nil, nil), QuarantineRoutes(restored), DescriptionRoutes())
	s.site = newSite(t, siteOptions{routes: others, store: s.store, server: Options{Options: httpd.Options{Auth: auth}}})
	s.routes = append(LedgerRoutes(s.site.ledger, nil, nil, home.Reach{}), others...)
	return s
}

// as makes a call with a token for words, expects a status and returns the answer.
func (s *roleSite) as(words string, want int, method, path, body string, header ...string) map[string]any {
	s.t.Helper()
	return s.call(want, method, path, body, append(header, "authorization", "Bearer "+tokenFor(words))...)
}

// TestMatrixOfRoles tries each role against each route, and compares the answers with the table in
// docs/reference/CONFIGURATION.md, which must have every route.
func TestMatrixOfRoles(t *testing.T) {
	text, err := os.ReadFile("../../../docs/reference/CONFIGURATION.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ = bytes.Cut(text, []byte("\n### What each role may call\n"))
	table := map[string]map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`(?:GET|POST|PUT|DELETE) .*) \\|(.*)\\|$").FindAllSubmatch(text, -1) {
		allowed := map[string]string{}
		for item := range strings.SplitSeq(string(row[2]), ", ") {
			m := regexp.MustCompile("^`([^`]+)`(.*)$").FindStringSubmatch(strings.TrimSpace(item))
			switch {
			case m == nil && strings.TrimSpace(item) == "":
			case m == nil || m[1] != "any" && !slices.Contains(columns, m[1]):
				t.Fatalf("%s: no role: %s", row[1], item)
			case m[1] == "any":
				for _, words := range columns {
					allowed[words] = "any"
				}
			default:
				allowed[m[1]] = cmp.Or(m[2], "yes")
			}
		}
		allowed["admin"] = "yes"
		for route := range strings.SplitSeq(string(row[1]), ", ") {
			if route = strings.Trim(route, "`"); table[route] != nil {
				t.Errorf("%s is there twice", route)
			}
			table[route] = allowed
		}
	}
	s := newRoleSite(t, columns...)
	open := []string{"GET /healthz", "GET /readyz"}
	for _, r := range s.routes {
		if r.Roles == httpd.Anyone {
			open = append(open, r.Method+" "+r.Path)
			continue
		}
		route := r.Method + " " + r.Path
		cells, ok := table[route]
		if !ok {
			t.Errorf("%s is not in the table", route)
			continue
		}
		delete(table, route)
		path := strings.ReplaceAll(r.Path, "{function}", "f")
		path = regexp.MustCompile(`\{\w+\}`).ReplaceAllString(path, "none")
		for _, words := range columns {
			body := "{}"
			if strings.Contains(cells[words], "`lease_token`") {
				body = `{"lease_token":"none"}`
			}
			a := s.Do(r.Method, path, "application/json", body, "authorization", "Bearer "+tokenFor(words))
			if allowed := cells[words] != ""; (a.Status != 403) != allowed || a.Status == 401 {
				t.Errorf("%s with %q: %d %s; the table says %q", route, words, a.Status, a.Body, cells[words])
			}
			if a.Status == 403 && !strings.Contains(a.Body, `"code":"forbidden"`) {
				t.Errorf("%s with %q: %s", route, words, a.Body)
			}
		}
		if a := s.Do(r.Method, path, "application/json", "{}"); a.Status != 401 {
			t.Errorf("%s without a token: %d", route, a.Status)
		}
	}
	for _, route := range open {
		method, path, _ := strings.Cut(route, " ")
		if a := s.Do(method, path, "", ""); a.Status != 200 || table[route]["no word"] != "any" {
			t.Errorf("%s: %d; the table says %v", route, a.Status, table[route])
		}
		delete(table, route)
	}
	for route := range table {
		t.Errorf("the table has %s, which does not exist", route)
	}
}

// TestSubmittersReadTheirOwnJobs: and nothing of others', by whatever way their submissions meet.
func TestSubmittersReadTheirOwnJobs(t *testing.T) {
	const a, b = "submitter", "submitter worker:x"
	s := newRoleSite(t, a, b, "operator", "no word", "submitter operator")
	job := s.as(a, 202, "POST", "/v1/jobs", `{"function":"pay","payload":{"iban":"DE-secret"},"key":"k","id":"one"}`, "idempotency-key", "i1")
	if _, shown := job["owner"]; shown {
		t.Errorf("an answer shows the owner: %v", job)
	}
	for words, want := range map[string]int{a: 200, b: 403, "operator": 200, "no word": 200, "submitter operator": 200} {
		s.as(words, want, "GET", "/v1/jobs/one", "")
		s.as(words, want, "GET", "/v1/jobs/one?wait_ms=1", "")
	}
	s.as(b, 404, "GET", "/v1/jobs/two", "")
	const held = `{"function":"pay","payload":1,"key":"k","on_duplicate":"return_existing"}`
	mine, others := s.as(a, 200, "POST", "/v1/jobs", held), s.as(b, 200, "POST", "/v1/jobs", held, "idempotency-key", "i2")
	if mine["created_at"] == nil || others["payload"] != nil || others["id"] != mine["id"] || others["state"] != "queued" || others["created_at"] != nil {
		t.Errorf("its submitter learns %v, another %v", mine, others)
	}
	// The recorded answer is the same.
	again := s.Do("POST", "/v1/jobs", "application/json", held, "idempotency-key", "i2", "authorization", "Bearer "+tokenFor(b))
	if again.Status != 200 || strings.Contains(again.Body, "created_at") || again.Header.Get(api.HeaderReplayed) != "true" {
		t.Errorf("repeated: %d %s", again.Status, again.Body)
	}
	// Another caller's job is no duplicate.
	const equal = `{"function":"dup","payload":1,"dedup":{}}`
	if mine, others := s.as(a, 202, "POST", "/v1/jobs", equal), s.as(b, 202, "POST", "/v1/jobs", equal); mine["id"] == others["id"] {
		t.Errorf("dropped for another caller's job: %v", others)
	}
	// Another caller's key is another key.
	other := s.as(b, 202, "POST", "/v1/jobs", `{"function":"pay","payload":{"iban":"DE-secret"},"id":"three"}`, "idempotency-key", "i1")
	if other["id"] != "three" {
		t.Errorf("another caller's key: %v", other)
	}
	// A dead letter that an operator replays stays its submitter's.
	claimed := s.as("no word", 200, "POST", "/v1/jobs/claim", `{"worker":"w","functions":["pay"]}`)["jobs"].([]any)[0].(map[string]any)
	finish := fmt.Sprintf(`{"lease_token":%q,"status":"failed","error":"e"}`, claimed["lease"].(map[string]any)["token"])
	s.as("no word", 200, "POST", "/v1/jobs/one/finish", finish)
	s.as(b, 403, "GET", "/v1/jobs/one", "")
	fresh := s.as("operator", 202, "POST", "/v1/functions/pay/dead-letters/one/replay", "")["id"].(string)
	s.as(a, 200, "GET", "/v1/jobs/"+fresh, "")
	s.as(b, 403, "GET", "/v1/jobs/"+fresh, "")
	// A job of a token without words is nobody's.
	s.as("no word", 202, "POST", "/v1/jobs", `{"function":"pay","id":"four"}`)
	s.as(a, 403, "GET", "/v1/jobs/four", "")
	// A listing is an operator's, and shows no payloads unless it is asked to.
	if a := s.Do("GET", "/v1/jobs", "", "", "authorization", "Bearer "+tokenFor("operator")); a.Status != 200 || strings.Contains(a.Body, "DE-secret") {
		t.Errorf("a listing: %d %s", a.Status, a.Body)
	}
}

// TestNamedWorkers work on the jobs of their functions only.
func TestNamedWorkers(t *testing.T) {
	const f, g = "worker:f worker:h", "worker:g"
	s := newRoleSite(t, f, g, "admin", "operator")
	for _, function := range []string{"f", "g", "h"} {
		s.as("admin", 202, "POST", "/v1/jobs", fmt.Sprintf(`{"function":%q,"id":%q}`, function, function))
	}
	claim := func(words, functions string) (ids []string, tokens map[string]string) {
		tokens = map[string]string{}
		for _, j := range s.as(words, 200, "POST", "/v1/jobs/claim", `{"worker":"w","limit":10`+functions+`}`)["jobs"].([]any) {
			j := j.(map[string]any)
			ids = append(ids, j["id"].(string))
			tokens[j["id"].(string)] = j["lease"].(map[string]any)["token"].(string)
		}
		slices.Sort(ids)
		return ids, tokens
	}
	for _, functions := range []string{`["g"]`, `["f","g"]`, `["none"]`} {
		s.as(f, 403, "POST", "/v1/jobs/claim", `{"worker":"w","functions":`+functions+`}`)
	}
	ids, _ := claim(f, `,"functions":["h"]`)
	more, tokens := claim(f, "")
	if strings.Join(ids, " ") != "h" || strings.Join(more, " ") != "f" {
		t.Fatalf("claimed %v, then %v", ids, more)
	}
	lease := fmt.Sprintf(`{"lease_token":%q}`, tokens["f"])
	finish := fmt.Sprintf(`{"lease_token":%q,"status":"complete"}`, tokens["f"])
	many := fmt.Sprintf(`{"finishes":[{"id":"f","lease_token":%q,"status":"complete"}]}`, tokens["f"])
	s.as(g, 403, "POST", "/v1/jobs/f/heartbeat", lease)
	s.as(g, 403, "POST", "/v1/jobs/f/retry", lease)
	s.as(g, 403, "POST", "/v1/jobs/f/finish", finish)
	if got := s.as(g, 200, "POST", "/v1/jobs/finish", many)["results"].([]any)[0].(map[string]any)["problem"]; got == nil || got.(map[string]any)["code"] != "forbidden" {
		t.Errorf("finish of many: %v", got)
	}
	s.as(f, 403, "POST", "/v1/jobs/f/retry", `{}`)
	s.as("operator", 403, "POST", "/v1/jobs/f/retry", lease)
	s.as("operator", 409, "POST", "/v1/jobs/f/retry", `{}`)
	s.as(f, 200, "POST", "/v1/jobs/f/heartbeat", lease)
	if got := s.as(f, 200, "POST", "/v1/jobs/finish", many)["results"].([]any)[0].(map[string]any)["state"]; got != "complete" {
		t.Errorf("finish of many: %v", got)
	}
	s.as(f, 200, "POST", "/v1/jobs/f/finish", finish)
	s.as(g, 403, "POST", "/v1/jobs/f/finish", finish)
}

// TestGatesCannotReplaceOutcomes: a gate ends only the attempt whose token it knows. A key that is gone takes a late
// outcome, which gives a gate nothing that a reserve and a commit would not.
func TestGatesCannotReplaceOutcomes(t *testing.T) {
	s := newRoleSite(t, "gate", "gate worker", "operator")
	call := func(words string, want int, op, key, token, more string) {
		t.Helper()
		s.as(words, want, "POST", "/v1/ledger/"+op, fmt.Sprintf(`{"key":%q,"token":%q%s}`, key, token, more))
	}
	const evil, true1 = `,"result":{"status":200,"body":"ZXZpbA=="}`, `,"result":{"status":201,"body":"dHJ1ZQ=="}`
	call("gate", 201, "reserve", "k", "t1", "")
	for _, op := range []string{"commit", "reject"} {
		call("gate worker", 409, op, "k", "t2", evil)
	}
	call("gate worker", 409, "release", "k", "t2", "")
	// The fencing token decides, and not the bearer token: rotation and a second proxy must not lose an outcome.
	call("gate worker", 200, "commit", "k", "t1", true1)
	for _, op := range []string{"commit", "reject"} {
		call("gate worker", 409, op, "k", "t2", evil)
	}
	call("gate worker", 409, "release", "k", "t2", "")
	if got := s.as("operator", 200, "GET", "/v1/ledger/entries/k", "")["result"].(map[string]any)["body"]; got != "dHJ1ZQ==" {
		t.Errorf("recorded: %v", got)
	}
	s.as("gate", 403, "GET", "/v1/ledger/entries/k", "")
	if list := s.Do("GET", "/v1/ledger/entries", "", "", "authorization", "Bearer "+tokenFor("operator")); list.Status != 200 || strings.Contains(list.Body, "dHJ1ZQ==") {
		t.Errorf("a listing shows answers: %s", list.Body)
	}
	// An unknown outcome takes the true one, with its token.
	call("gate", 201, "reserve", "u", "t1", "")
	call("gate", 200, "unknown", "u", "t1", "")
	call("gate worker", 409, "commit", "u", "t2", evil)
	call("gate", 200, "commit", "u", "t1", true1)
}
