package servers

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { os.Exit(Sharing(m).Run()) }

// hangs is set in the binary that TestKilledBinaryLeavesNoServer kills.
const hangs = "SERVERS_TEST_HANGS"

// A binary that is killed ends no server itself.
func TestKilledBinaryLeavesNoServer(t *testing.T) {
	if os.Getenv(hangs) != "" {
		SharedPostgres(t)
		SharedEtcd(t)
		SharedRedis(t)
		fmt.Println("pids", postgres.server.PID(), etcd.server.PID(), redis.server.PID())
		_, _ = io.Copy(io.Discard, os.Stdin) // until the caller ends
		return
	}
	t.Parallel()
	dir, err := tempDir() // the killed binary leaves its files there
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // for the user of PostgreSQL
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), hangs+"=1", "TMPDIR="+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var pids [3]int
	for lines := bufio.NewScanner(out); pids[2] == 0; {
		if !lines.Scan() {
			t.Fatalf("the binary started no servers: %v", cmd.Wait())
		}
		_, _ = fmt.Sscanf(lines.Text(), "pids %d %d %d", &pids[0], &pids[1], &pids[2])
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for _, pid := range pids {
		for end := time.Now().Add(startTimeout); lives(pid); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("server %d lives", pid)
			}
		}
	}
}

// lives reports whether a process exists and has not ended.
func lives(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := bytes.Cut(stat, []byte(") "))
	return err == nil && !bytes.HasPrefix(state, []byte("Z"))
}

// Each test has data of its own, and removes its database.
func TestSharesAreApart(t *testing.T) {
	t.Parallel()
	var names []string
	t.Run("two", func(t *testing.T) {
		for _, share := range []func(testing.TB) Share{SharedEtcd, SharedRedis, SharedPostgres} {
			a, b := share(t), share(t)
			if a.URL == b.URL || a.Name == b.Name || a.Address != b.Address {
				t.Errorf("two shares are %+v and %+v", a, b)
			}
			names = []string{a.Name, b.Name}
		}
		dsn := strings.Replace(postgres.server.URL, "dbname=postgres", "dbname="+names[0], 1)
		conn, err := pgx.Connect(t.Context(), dsn) // the database is dropped although the connection is open
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), `CREATE SCHEMA oncegate`); err != nil {
			t.Error(err)
		}
	})
	conn, err := pgx.Connect(t.Context(), postgres.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var left int
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_database WHERE datname = ANY ($1)`, names).Scan(&left); err != nil || left != 0 {
		t.Errorf("%d databases are left of %q: %v", left, names, err)
	}
}
