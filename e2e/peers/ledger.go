package main

import (
	"context"
	_ "embed"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/managertest/servers"
)

//go:embed pairs.lua
var pairsLua []byte

//go:embed lookups.lua
var lookupsLua []byte

// compareLedgers measures the two things a gate asks of a ledger: a new key
// (durable before it is answered) and a duplicate.
func compareLedgers(ctx context.Context, s settings) error {
	scripts, err := os.MkdirTemp("", "oncegate-peers")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scripts)
	for name, text := range map[string][]byte{"pairs.lua": pairsLua, "lookups.lua": lookupsLua} {
		if err := os.WriteFile(filepath.Join(scripts, name), text, 0o644); err != nil {
			return err
		}
	}
	columns := make([]string, len(s.callers))
	for i, n := range s.callers {
		columns[i] = fmt.Sprintf("%d callers", n)
	}
	writes := &table{name: "ledger-writes", title: "Durable new keys: one fsync-acknowledged operation each", columns: columns}
	lookups := &table{name: "ledger-lookups", title: "Duplicates answered", columns: columns}

	echo := func() ([]float64, []float64, error) {
		values, err := measureEcho(ctx, s, filepath.Join(scripts, "pairs.lua"))
		return values, nil, err
	}
	manager := func() ([]float64, []float64, error) { return measureManager(ctx, s, scripts) }
	for _, c := range []struct {
		name, write, lookup string
		measure             func() (writes, lookups []float64, err error)
	}{
		{"echo on net/http", "no ledger; wrk", "", echo},
		{"oncegate manager", "reserve, commit (wrk)", "reserve of a committed key (wrk)", manager},
		{"redis appendfsync always", "SET NX (redis-benchmark)", "SET NX that fails + GET (redis-benchmark)", func() ([]float64, []float64, error) {
			return measureRedis(ctx, s)
		}},
		{"postgres", "INSERT ON CONFLICT (pgbench)", "", func() ([]float64, []float64, error) {
			values, err := measurePostgres(ctx, s)
			return values, nil, err
		}},
		{"etcd", "create-if-absent (Go client)", "", func() ([]float64, []float64, error) {
			values, err := measureEtcd(ctx, s)
			return values, nil, err
		}},
	} {
		if !strings.Contains(c.name, s.only) {
			continue
		}
		w, l, err := c.measure()
		if err != nil {
			return err
		}
		writes.add(c.name+": "+c.write, w)
		if c.lookup != "" {
			lookups.add(c.name+": "+c.lookup, l)
		}
	}
	if len(writes.rows) == 0 {
		return usageError(fmt.Sprintf("-only %q: no system has that in its name", s.only))
	}

	notes := strings.Join([]string{
		"Versions: " + version(ctx, s.manager, "version"), version(ctx, "redis-server", "--version"), version(ctx, "psql", "--version"),
		version(ctx, "etcd", "--version"), "wrk 4 (Debian)",
	}, "; ") + fmt.Sprintf(".\nEach cell is one run of %s; client and server share the machine's cores.\n", s.duration)
	if err := writes.write(s.out, notes); err != nil || len(lookups.rows) == 0 {
		return err
	}
	return lookups.write(s.out, notes)
}

// roomyWindow is the size of the manager's window. No new key is refused during the longest run.
const roomyWindow = 20_000_000

var wrkRate = regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)

// wrk returns requests per second; an answer that is not 2xx fails it.
func wrk(ctx context.Context, s settings, callers int, addr, script string) (float64, error) {
	out, err := tool(ctx, "wrk", "-t", strconv.Itoa(min(callers, 2)), "-c", strconv.Itoa(callers), "-d", s.duration.String(),
		"--timeout", "20s", "-s", script, "http://"+addr, "--", strconv.Itoa(callers))
	if err != nil {
		return 0, err
	}
	m := wrkRate.FindStringSubmatch(out)
	if m == nil || strings.Contains(out, "Non-2xx") || strings.Contains(out, "Socket errors") {
		return 0, fmt.Errorf("wrk against %s:\n%s", addr, out)
	}
	return strconv.ParseFloat(m[1], 64)
}

func forCallers(s settings, measure func(callers int) (float64, error)) ([]float64, error) {
	values := make([]float64, len(s.callers))
	for i, n := range s.callers {
		v, err := measure(n)
		if err != nil {
			return nil, err
		}
		values[i] = v
	}
	return values, nil
}

func measureEcho(ctx context.Context, s settings, script string) ([]float64, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p, err := startLogged("", self, "echo")
	if err != nil {
		return nil, err
	}
	defer p.stop()
	return forCallers(s, func(callers int) (float64, error) { return wrk(ctx, s, callers, p.addr, script) })
}

func measureManager(ctx context.Context, s settings, scripts string) (pairs, dups []float64, err error) {
	dir, err := os.MkdirTemp("", "oncegate-peers")
	if err != nil {
		return nil, nil, err
	}
	p, err := startManager(dir, s.manager, "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	defer p.stop()
	pairs, err = forCallers(s, func(callers int) (float64, error) {
		return wrk(ctx, s, callers, p.addr, filepath.Join(scripts, "pairs.lua"))
	})
	if err != nil {
		return nil, nil, err
	}
	// The first requests of lookups.lua create the keys; they are few.
	dups, err = forCallers(s, func(callers int) (float64, error) {
		return wrk(ctx, s, callers, p.addr, filepath.Join(scripts, "lookups.lua"))
	})
	return pairs, dups, err
}

// startManager starts a manager whose records are in a new directory in dir.
func startManager(dir, bin, listen string, more ...string) (*process, error) {
	data, err := os.MkdirTemp(dir, "data")
	if err != nil {
		return nil, err
	}
	return startLogged(data, bin, append([]string{"serve", "--data-dir", data, "--listen", listen, "--max-entries", strconv.Itoa(roomyWindow),
		"--max-bytes", "1099511627776", "--scope-share", "0"}, more...)...)
}

func measureRedis(ctx context.Context, s settings) (sets, dups []float64, err error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, nil, err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, nil, err
	}
	srv, err := servers.StartRedis(ctx, "--bind", host, "--port", port)
	if err != nil {
		return nil, nil, err
	}
	defer srv.Close()
	value := strings.Repeat("x", 256)
	bench := func(callers int, requests, keys int, command ...string) (float64, error) {
		return redisBenchmark(ctx, addr, callers, 1, requests, keys, command...)
	}
	// redis-benchmark takes a number of requests; a short run shows how many
	// fill the duration.
	timed := func(callers, keys int, command ...string) (float64, error) {
		rate, err := bench(callers, 20000, keys, command...)
		if err != nil {
			return 0, err
		}
		return bench(callers, max(20000, int(rate*s.duration.Seconds())), keys, command...)
	}
	sets, err = forCallers(s, func(callers int) (float64, error) {
		return timed(callers, 1_000_000_000, "SET", "once:__rand_int__", value, "NX", "PX", "300000")
	})
	if err != nil {
		return nil, nil, err
	}
	// Fill all of the keys that the lookups will find.
	if _, err := bench(16, 100000, 1000, "SET", "dup:__rand_int__", value, "NX"); err != nil {
		return nil, nil, err
	}
	dups, err = forCallers(s, func(callers int) (float64, error) {
		failing, err := timed(callers, 1000, "SET", "dup:__rand_int__", value, "NX")
		if err != nil {
			return 0, err
		}
		gets, err := timed(callers, 1000, "GET", "dup:__rand_int__")
		if err != nil {
			return 0, err
		}
		return 1 / (1/failing + 1/gets), nil // a lookup is both
	})
	return sets, dups, err
}

// redisBenchmark returns commands per second of Redis's own client.
func redisBenchmark(ctx context.Context, addr string, callers, pipeline, requests, keys int, command ...string) (float64, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return 0, err
	}
	args := []string{"-h", host, "-p", port, "-c", strconv.Itoa(callers), "-P", strconv.Itoa(pipeline), "-n", strconv.Itoa(requests),
		"-r", strconv.Itoa(keys), "--threads", "1", "--csv"}
	out, err := tool(ctx, "redis-benchmark", append(args, command...)...)
	if err != nil {
		return 0, err
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	fields := strings.Split(lines[len(lines)-1], ",")
	if len(fields) < 2 {
		return 0, fmt.Errorf("redis-benchmark printed %q", out)
	}
	return strconv.ParseFloat(strings.Trim(fields[1], `"`), 64)
}

var tps = regexp.MustCompile(`tps = ([0-9.]+)`)

func measurePostgres(ctx context.Context, s settings) ([]float64, error) {
	srv, err := servers.StartPostgres(ctx, "-c", "max_connections=600", "-c", "shared_buffers=256MB")
	if err != nil {
		return nil, err
	}
	defer srv.Close()
	dir := filepath.Dir(srv.Socket)
	psql := []string{"-h", dir, "-U", "oncegate", "-d", "postgres"}
	if _, err := tool(ctx, "psql", append(psql, "-c",
		`CREATE TABLE keys (key uuid PRIMARY KEY, token uuid NOT NULL, state smallint NOT NULL, expires timestamptz NOT NULL, result bytea)`)...); err != nil {
		return nil, err
	}
	script := filepath.Join(os.TempDir(), fmt.Sprintf("oncegate-peers-%d.sql", os.Getpid()))
	defer os.Remove(script)
	if err := os.WriteFile(script, []byte("INSERT INTO keys VALUES (gen_random_uuid(), gen_random_uuid(), 1, now() + interval '60 s', decode(repeat('78', 256), 'hex')) ON CONFLICT (key) DO NOTHING;\n"), 0o644); err != nil {
		return nil, err
	}
	pgbench := "pgbench"
	if dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench"); len(dirs) > 0 {
		pgbench = dirs[len(dirs)-1]
	}
	return forCallers(s, func(callers int) (float64, error) {
		out, err := tool(ctx, pgbench, "-h", dir, "-U", "oncegate", "-n", "-M", "prepared", "-c", strconv.Itoa(callers), "-j", strconv.Itoa(min(callers, 2)),
			"-T", strconv.Itoa(int(s.duration/time.Second)), "-f", script, "postgres")
		if err != nil {
			return 0, err
		}
		m := tps.FindStringSubmatch(out)
		if m == nil {
			return 0, fmt.Errorf("pgbench printed:\n%s", out)
		}
		return strconv.ParseFloat(m[1], 64)
	})
}
