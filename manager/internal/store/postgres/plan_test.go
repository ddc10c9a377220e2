package postgres

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// logDirectory returns a directory for the server's log. The server may run as another user, who cannot enter t.TempDir.
func logDirectory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "oncegate-log")
	if err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		err = os.Chmod(dir, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestPlansAreLookUps has the server tell how it ran every statement of a
// workload, on tables it knows nothing about, on tables it believes to be empty
// although they are not, and on tables it knows. All have to be look-ups in the
// two primary keys: one other plan, kept by a connection while the tables grow,
// would make a queue stand still.
func TestPlansAreLookUps(t *testing.T) {
	t.Parallel()
	dir := logDirectory(t)
	srv := servers.Postgres(t, "-c", "session_preload_libraries=auto_explain", "-c", "auto_explain.log_min_duration=0",
		"-c", "auto_explain.log_nested_statements=on", "-c", "logging_collector=on", "-c", "log_directory="+dir,
		"-c", "log_filename=plans", "-c", "log_file_mode=0644", "-c", "autovacuum=off")
	s := open(t, srv.URL)
	const records = 3000
	for _, prepare := range []struct {
		name string
		f    func()
	}{
		{"fresh tables", func() {}},
		{"statistics of empty tables", func() {
			for _, sql := range []string{`TRUNCATE oncegate.records, oncegate.index_entries`, `VACUUM ANALYZE oncegate.records, oncegate.index_entries`} {
				if _, err := s.pool.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			s.pool.Reset() // new connections plan again
			workload(t, s, 0)
		}},
		{"many records", func() {
			fill(t, s, records)
		}},
		{"statistics of many records", func() {
			if _, err := s.pool.Exec(t.Context(), `ANALYZE oncegate.records, oncegate.index_entries`); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		prepare.f()
		workload(t, s, 3)
	}
	s.pool.Reset()
	log := readPlans(t, dir)
	seen := 0
	for _, plan := range log {
		if !strings.Contains(plan, ".records") && !strings.Contains(plan, ".index_entries") || strings.Contains(plan, "count(*) FROM") ||
			strings.Contains(plan, "CREATE OR REPLACE VIEW") { // once for each index
			continue
		}
		seen++
		if problem := judge(plan); problem != "" {
			t.Fatalf("%s:\n%s", problem, plan)
		}
	}
	if seen < 100 {
		t.Fatalf("only %d plans were found", seen)
	}
}

var (
	scanOf = regexp.MustCompile(`(\S+ Scan|Index Only Scan|Index Scan)(?: using (\S+))? on (records|index_entries) `)
	other  = regexp.MustCompile(`Seq Scan on|Bitmap|Hash Join|Merge Join|Sort  |Materialize|Memoize`)
)

// judge returns what is wrong with a plan.
func judge(plan string) string {
	lines := strings.Split(plan, "\n")
	for i, line := range lines {
		if other.MatchString(line) {
			return "not a look-up: " + strings.TrimSpace(line)
		}
		m := scanOf.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		cond := ""
		if i+1 < len(lines) {
			cond = lines[i+1]
		}
		must := "key = "
		if m[3] == "index_entries" {
			must = "index_id = "
		}
		if m[2] != m[3]+"_pkey" || !strings.Contains(cond, "Index Cond") || !strings.Contains(cond, must) {
			return "reads too much: " + strings.TrimSpace(line) + " " + strings.TrimSpace(cond)
		}
	}
	return ""
}

// readPlans splits the server's log into its plans.
func readPlans(t *testing.T, dir string) []string {
	b, err := os.ReadFile(filepath.Join(dir, "plans"))
	if err != nil {
		t.Fatal(err)
	}
	var plans []string
	for _, part := range strings.Split(string(b), "duration: ")[1:] {
		// What follows the plan begins with a time again.
		if end := regexp.MustCompile(`(?m)^\d{4}-\d\d-\d\d `).FindStringIndex(part); end != nil {
			part = part[:end[0]]
		}
		plans = append(plans, part)
	}
	return plans
}

func fill(t *testing.T, s *Store, n int) {
	for from := 0; from < n; from += 500 {
		err := s.Update(t.Context(), func(tx store.Tx) error {
			for i := from; i < from+500; i++ {
				key := fmt.Sprintf("filled%06d", i)
				if err := tx.Put("things", key, []byte("v"), store.Entry{Index: "byname", SortKey: key}, store.Entry{Index: "state", SortKey: key}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// workload uses every statement, often enough that each is planned for good.
func workload(t *testing.T, s *Store, rounds int) {
	t.Helper()
	for i := range rounds {
		a, b := fmt.Sprint("a", i), fmt.Sprint("b", i)
		all := func(m mode) error {
			return s.transact(t.Context(), func(tx store.Tx) error {
				_, missing := tx.Get("things", "missing")
				if !errors.Is(missing, store.ErrNotFound) {
					return missing
				}
				if err := tx.Prefetch([]store.ID{{Collection: "things", Key: a}, {Collection: "things", Key: "only read"}}); err != nil {
					return err
				}
				for _, r := range []store.Range{{}, {To: "z"}, {After: &store.Hit{SortKey: "a", Key: "a"}}, {After: &store.Hit{SortKey: "a", Key: "a"}, To: "z"}} {
					for _, r.Claim = range []bool{false, true} {
						r.Limit = 2
						if _, err := tx.Scan("things", "byname", r); err != nil {
							return err
						}
					}
				}
				if m == snapshot {
					return nil
				}
				return errors.Join(
					tx.Put("things", a, []byte("1"), store.Entry{Index: "byname", SortKey: a}),
					tx.Put("things", "only read", []byte("1"), store.Entry{Index: "byname", SortKey: fmt.Sprint(i)}),
					tx.Delete("things", b),
				)
			}, func(int) (mode, bool) { return m, m == optimistic })
		}
		read := func() error {
			return s.Update(t.Context(), func(tx store.Tx) error {
				_, err1 := tx.Get("things", a)
				_, err2 := tx.Get("things", "only read")
				return errors.Join(err1, err2, tx.Put("things", b, []byte("2"), store.Entry{Index: "byname", SortKey: b}))
			})
		}
		same := func() error {
			return s.Update(t.Context(), func(tx store.Tx) error {
				_, err1 := tx.Get("things", a)
				_, err2 := tx.Get("things", b)
				return errors.Join(err1, err2)
			})
		}
		if err := errors.Join(all(optimistic), read(), same(), all(optimistic), read(), all(pessimistic), all(snapshot)); err != nil {
			t.Fatal(err)
		}
	}
}
