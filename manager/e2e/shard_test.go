package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/managertest/deep"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// eachKept runs a test on every engine that keeps what it has, with the arguments that choose it and an empty prefix.
func eachKept(t *testing.T, test func(t *testing.T, store []string)) {
	kept := map[string]func(t *testing.T) []string{
		"wal":    func(t *testing.T) []string { return []string{"--data-dir", t.TempDir()} },
		"sqlite": func(t *testing.T) []string { return []string{"--store", "sqlite", "--data-dir", t.TempDir()} },
		"redis":  func(t *testing.T) []string { return []string{"--store", "redis", "--store-dsn", servers.Redis(t).URL} },
		"postgres": func(t *testing.T) []string {
			return []string{"--store", "postgres", "--store-dsn", servers.Postgres(t).URL}
		},
		"etcd": func(t *testing.T) []string { return []string{"--store", "etcd", "--store-dsn", servers.Etcd(t).URL} },
	}
	each(t, deep.Keys(t, kept), func(t *testing.T, name string) {
		test(t, kept[name](t))
	})
}

// refusedStart starts a manager that must end with exit code 2 and one line besides its log.
func refusedStart(t *testing.T, want string, args ...string) {
	t.Helper()
	code, out := oncegate(t, append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...)
	if code != 2 {
		t.Errorf("%v: exit code %d: %s", args, code, out)
	}
	var lines []string
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "{") {
			lines = append(lines, line)
		}
	}
	if len(lines) != 1 || !strings.Contains(lines[0], want) {
		t.Errorf("%v: %q; want one line with %s", args, lines, want)
	}
}

// TestDataOfAnotherShard: on every engine a manager does not start as another shard than its data are, and what it is
// outlives kill -9.
func TestDataOfAnotherShard(t *testing.T) {
	t.Parallel()
	eachKept(t, func(t *testing.T, store []string) {
		with := func(args ...string) []string { return append(args, store...) }
		startManager(t, with("--shard", "A")...).kill()
		refusedStart(t, `oncegate serve: --shard "B": the data belong to shard "A" (ledger `, with("--shard", "B")...)
		p := startManager(t, with()...) // who it is, it knows by itself
		if status, body := get(t, p.addr["api"], "/v1/ledger/stats"); status != 200 || !strings.Contains(body, `"shard":"A"`) {
			t.Errorf("%d %s", status, body)
		}
		p.kill()
		p = startManager(t, with("--shard", "B", "--shard-was", "A")...)
		if !strings.Contains(p.stderr.String(), `"the ledger has another name"`) {
			t.Errorf("the log: %s", p.stderr)
		}
		p.kill()
		refusedStart(t, `--shard "A": the data belong to shard "B"`, with("--shard", "A")...)
	})
}

// TestListIsKept: on every engine a list stays in force until another one replaces it, and is not replaced by an
// earlier one by accident.
func TestListIsKept(t *testing.T) {
	t.Parallel()
	eachKept(t, func(t *testing.T, store []string) {
		with := func(args ...string) []string { return append(append(args, "--shard", "A"), store...) }
		startManager(t, with("--shards", "A,B")...).kill()
		p := startManager(t, with("--shards", "A,B,C")...)
		if log := p.stderr.String(); !strings.Contains(log, "the list of shards has changed") || !strings.Contains(log, `"from":["A","B"],"from_version":1,"to":["A","B","C"],"to_version":2`) {
			t.Errorf("the log: %s", log)
		}
		p.kill()
		refusedStart(t, `--shards "A,B": the ledger had this list before the present one, "A,B,C", and going back can run keys twice: to do it anyway, give --shards-version 3`,
			with("--shards", "A,B")...)
		p = startManager(t, with()...)
		if status, body := get(t, p.addr["api"], "/v1/ledger/stats"); status != 200 || !strings.Contains(body, `"shards":["A","B","C"],"shards_version":2`) {
			t.Errorf("%d %s", status, body)
		}
		p.kill()
		startManager(t, with("--shards", "A,B", "--shards-version", "3")...).kill()
	})
}

// Of two managers whose volumes were swapped neither starts.
func TestSwappedDirectoriesAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b, aside := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "aside")
	startManager(t, "--shard", "A", "--data-dir", a).kill()
	startManager(t, "--shard", "B", "--data-dir", b).kill()
	for _, move := range [][2]string{{a, aside}, {b, a}, {aside, b}} {
		if err := os.Rename(move[0], move[1]); err != nil {
			t.Fatal(err)
		}
	}
	refusedStart(t, `--shard "A": the data belong to shard "B"`, "--shard", "A", "--data-dir", a)
	refusedStart(t, `--shard "B": the data belong to shard "A"`, "--shard", "B", "--data-dir", b)
	if code, out := oncegate(t, "wal", "stats", "--data-dir", a); code != 0 || !strings.Contains(out, `"shard": "B"`) {
		t.Errorf("stats: exit code %d, %s", code, out)
	}
}
