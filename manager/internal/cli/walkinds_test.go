package cli

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// neverInALog are the collections of which no engine wal has records: only engines that managers share keep their quarantine
// in the store.
var neverInALog = []string{"quarantine"}

// collections finds the constants of the type store.Collection in the sources of the manager.
func collections(t *testing.T) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.Contains(name, "storetest") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			return err
		}
		isCollection := func(e ast.Expr) bool {
			s, ok := e.(*ast.SelectorExpr)
			return ok && s.Sel.Name == "Collection" && fmt.Sprint(s.X) == "store"
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for _, value := range spec.Values {
				conversion, ok := value.(*ast.CallExpr)
				if ok && isCollection(conversion.Fun) {
					value = conversion.Args[0]
				} else if spec.Type == nil || !isCollection(spec.Type) {
					continue
				}
				if literal, ok := value.(*ast.BasicLit); ok {
					text, err := strconv.Unquote(literal.Value)
					if err != nil {
						t.Fatal(err)
					}
					found = append(found, text)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestVerifyKnowsEveryCollection: a new kind of record must be taught to wal verify, too.
func TestVerifyKnowsEveryCollection(t *testing.T) {
	all := collections(t)
	if len(all) < 20 {
		t.Fatalf("only %q were found", all)
	}
	for _, name := range all {
		c := newRecordCheck(nil)
		c.change(&mem.Change{Collection: []byte(name), Key: []byte("k"), Value: []byte{1}})
		lines, _ := c.found()
		unknown := strings.Contains(strings.Join(lines, "\n"), "does not know its collection")
		if unknown != slices.Contains(neverInALog, name) {
			t.Errorf("%s: %q", name, lines)
		}
	}
}

// TestVerifyKnowsWhatManagersWrite: what a manager with everything turned on leaves is whole, whether its values are
// encrypted or not.
func TestVerifyKnowsWhatManagersWrite(t *testing.T) {
	for name, keys := range map[string][]string{"plain": nil, "encrypted": {"--encryption-key-file", keyFile(t)}} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			serve := func(use func(t *testing.T, url string)) {
				t.Run("serve", func(t *testing.T) {
					use(t, jobsManager(t, append(keys, "--store", "wal", "--data-dir", dir, "--shard", "a", "--shards", "a",
						"--origin", "dc1", "--peer", "dc2=http://127.0.0.1:1")...))
				})
			}
			serve(func(t *testing.T, url string) {
				for _, name := range []string{"ids", "structured"} {
					put(t, url+"/v1/logs/"+name, `{"identity":"`+name+`"}`, 201)
				}
				put(t, url+"/v1/events/e/subscriptions/f", "{}", 200)
				put(t, url+"/v1/schedules/nightly", `{"cron":"@daily","function":"f","payload":"secret"}`, 201)
				for _, call := range []struct {
					path, body string
					status     int
				}{
					{"/v1/logs/ids/writers", `{"writer":"w"}`, 201},
					{"/v1/logs/ids/entries", `{"id":"a","payload":"eA=="}`, 201},
					{"/v1/logs/structured/entries", `{"id":"c:0:n","payload":"eA=="}`, 201},
					{"/v1/ledger/reserve", `{"key":"leased","token":"t"}`, 201},
					{"/v1/ledger/reserve", `{"key":"done","token":"t"}`, 201},
					{"/v1/ledger/commit", `{"key":"done","token":"t","result":{"status":200}}`, 200},
					{"/v1/jobs", `{"function":"f","payload":"` + strings.Repeat("x", 1000) + `","key":"k","dedup":{"strategy":"until_executed"}}`, 202},
					{"/v1/jobs/claim", `{"worker":"w"}`, 200},
					{"/v1/functions/paused/pause", `{}`, 200},
				} {
					if call.path == "/v1/ledger/reserve" || strings.HasSuffix(call.path, "/entries") { // a peer that nobody reaches
						endQuarantine(t, url)
					}
					if status, body := post(t, strings.TrimPrefix(url, "http://"), call.path, call.body); status != call.status {
						t.Fatalf("%s: %d %s", call.path, status, body)
					}
				}
			})
			serve(func(*testing.T, string) {}) // extends the leases

			run := func(command string, more ...string) string {
				t.Helper()
				env, stdout, stderr := testEnv(nil)
				if code := Run(t.Context(), env, append([]string{"wal", command, "--data-dir", dir}, more...)); code != 0 {
					t.Errorf("wal %s: exit code %d: %s%s", command, code, stdout, stderr)
				}
				return stdout.String()
			}
			if text := run("verify", keys...); !strings.HasPrefix(text, "ok: ") || strings.Count(text, "\n") != 1 {
				t.Errorf("wal verify: %s", text)
			}
			if keys != nil {
				if text := run("verify"); !strings.Contains(text, " are encrypted and were not looked into; --encryption-key-file reads them") {
					t.Errorf("wal verify without the keys: %s", text)
				}
			}
			if text := run("stats"); !strings.Contains(text, `"shard": "a"`) {
				t.Errorf("wal stats: %s", text)
			}
			seen := map[string]bool{}
			for line := range strings.Lines(run("dump", keys...)) {
				var r dumpedRecord
				if err := json.Unmarshal([]byte(line), &r); err != nil {
					t.Fatal(err)
				}
				for _, c := range r.Changes {
					seen[c.Collection] = true
					seen[c.Collection+" "+c.Key] = true
					if _, err := strconv.Atoi(c.Key); err == nil {
						seen[c.Collection+" number"] = true
					}
					if c.Unreadable != "" {
						t.Errorf("wal dump: %s %s: %s", c.Collection, c.Key, c.Unreadable)
					}
				}
			}
			kinds := []string{"ledger", "ledger_usage seed", "ledger_usage number", "changes", "jobs", "job_blobs", "job_keys", "job_locks", "job_events e", "job_control functions", "schedules nightly",
				"job_control functions_version", "identity ledger", "downtime beat", "log_heads ids", "log_entries", "log_ids", "log_windows", "log_clients", "log_writers",
				"log_meta count"}
			if keys == nil {
				// Encrypting ends in a snapshot, after which a plan that was carried out may be gone.
				kinds = append(kinds, "downtime plan")
			}
			for _, kind := range kinds {
				if !seen[kind] {
					t.Errorf("the manager wrote no %s", kind)
				}
			}
		})
	}
}

func put(t *testing.T, url, body string, want int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != want {
		t.Fatalf("%s: %d", url, resp.StatusCode)
	}
}

// endQuarantine has a manager take keys that it does not know.
func endQuarantine(t *testing.T, url string) {
	t.Helper()
	env, _, stderr := testEnv(nil)
	if code := Run(t.Context(), env, []string{"ledger", "quarantine", "end", "--manager", url}); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
}
