package e2e

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/oncegate/oncegate/manager/managertest/deep"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// medium is the server of an engine, with all files in which it and its tools leave the values.
type medium struct {
	args []string
	// backups lets the server write everything to its files, makes the backups that its users make, and returns the
	// directories.
	backups func(t *testing.T) []string
	// clean removes the values of before the encryption as docs/operating.md describes, and returns the
	// directories that have none of them afterwards.
	clean func(t *testing.T) []string
}

var media = map[string]func(t *testing.T) medium{
	"postgres": func(t *testing.T) medium {
		srv := servers.Postgres(t, "-c", "autovacuum=off")
		data := filepath.Join(srv.Dir(), "data")
		run := func(t *testing.T, program string, args ...string) {
			path, err := servers.PostgresProgram(program)
			if err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(path, append(args, "-h", srv.Dir(), "-U", "oncegate", "-d", "postgres")...).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v %s", program, err, out)
			}
		}
		backups := func(t *testing.T) []string {
			dir := t.TempDir()
			run(t, "psql", "-q", "-c", "ANALYZE", "-c", "CHECKPOINT")
			run(t, "psql", "-q", "-o", filepath.Join(dir, "statistics"), "-c", "TABLE pg_statistic")
			run(t, "pg_dump", "--format=custom", "--compress=0", "--file", filepath.Join(dir, "custom"))
			run(t, "pg_dump", "--format=plain", "--file", filepath.Join(dir, "plain"))
			return []string{data, dir}
		}
		return medium{
			args:    []string{"--store", "postgres", "--store-dsn", srv.URL},
			backups: backups,
			clean: func(t *testing.T) []string {
				run(t, "psql", "-q", "-c", "ANALYZE", "-c", "VACUUM FULL")
				return []string{backups(t)[1], filepath.Join(data, "base"), filepath.Join(data, "global")}
			},
		}
	},
	"redis": func(t *testing.T) medium {
		srv := servers.Redis(t, "--rdbcompression", "no", "--aof-use-rdb-preamble", "no")
		backups := func(t *testing.T) []string {
			do := redisDo(t, srv)
			do("SAVE")
			return []string{srv.Dir()}
		}
		return medium{
			args:    []string{"--store", "redis", "--store-dsn", srv.URL},
			backups: backups,
			clean: func(t *testing.T) []string {
				do := redisDo(t, srv)
				do("BGREWRITEAOF")
				waitFor(t, "the file is rewritten", func() bool {
					return strings.Contains(do("INFO", "persistence"), "aof_rewrite_in_progress:0") && strings.Contains(do("INFO", "persistence"), "aof_rewrite_scheduled:0")
				})
				return backups(t)
			},
		}
	},
	"etcd": func(t *testing.T) medium {
		srv := servers.Etcd(t)
		data := filepath.Join(srv.Dir(), "data")
		with := func(t *testing.T, do func(ctx context.Context, c *clientv3.Client) error) {
			c, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.URL}})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := do(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		snapshot := func(t *testing.T) string {
			dir := t.TempDir()
			with(t, func(ctx context.Context, c *clientv3.Client) error {
				r, err := c.Snapshot(ctx)
				if err != nil {
					return err
				}
				defer r.Close()
				b, err := io.ReadAll(r)
				if err != nil {
					return err
				}
				return os.WriteFile(filepath.Join(dir, "snapshot"), b, 0o600)
			})
			return dir
		}
		return medium{
			args:    []string{"--store", "etcd", "--store-dsn", srv.URL},
			backups: func(t *testing.T) []string { return []string{snapshot(t), data} },
			clean: func(t *testing.T) []string {
				with(t, func(ctx context.Context, c *clientv3.Client) error {
					status, err := c.Status(ctx, srv.URL)
					if err == nil {
						_, err = c.Compact(ctx, status.Header.Revision, clientv3.WithCompactPhysical())
					}
					if err == nil {
						_, err = c.Defragment(ctx, srv.URL)
					}
					return err
				})
				dir := t.TempDir()
				b, err := os.ReadFile(filepath.Join(data, "member", "snap", "db"))
				if err == nil {
					err = os.WriteFile(filepath.Join(dir, "db"), b, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
				return []string{snapshot(t), dir}
			},
		}
	},
}

func redisDo(t *testing.T, srv *servers.Server) func(args ...any) string {
	o, err := redis.ParseURL(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return func(args ...any) string {
		answer, err := c.Do(t.Context(), args...).Text()
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return answer
	}
}

// useAll makes a manager of the data centre dc1 store all secrets, its own and those of its peer dc2.
func useAll(t *testing.T, p, peer *process) {
	t.Helper()
	useSecrets(t, p.addr["api"])
	finish := func(at *process, key, answer string) {
		t.Helper()
		url := "http://" + at.addr["api"] + "/v1/ledger/"
		mustAnswer(t, 201, "POST", url+"reserve", fmt.Sprintf(`{"key":%q,"token":%q}`, key, answer))
		mustAnswer(t, 200, "POST", url+"commit", fmt.Sprintf(`{"key":%q,"token":%q,"ttl_ms":3600000,"result":{"status":201,"body":%q}}`, key, answer,
			base64.StdEncoding.EncodeToString([]byte(answer))))
	}
	finish(p, "both", "own")
	finish(peer, "both", "4242-conflict")
	finish(peer, "theirs", "4242-imported")
	waitFor(t, "the peer's outcomes are here", func() bool {
		_, body := get(t, p.addr["api"], "/v1/ledger/conflicts")
		status, _ := get(t, p.addr["api"], "/v1/ledger/entries/theirs")
		return status == 200 && strings.Contains(body, `"both"`)
	})
}

// TestEncryptedMedia stores payments on the engines with servers, encrypted and not, and looks for them in the servers'
// files and backups.
func TestEncryptedMedia(t *testing.T) {
	t.Parallel()
	everything := slices.Sorted(slices.Values(slices.Concat(secrets, internals, ofPeers)))
	each(t, deep.Keys(t, media), func(t *testing.T, name string) {
		start := media[name]
		peer := startManager(t, "--store", "memory", "--origin", "dc2")
		run := func(m medium, args ...string) *process {
			t.Helper()
			args = append(args, "--committed-ttl-seconds", "3600", "--origin", "dc1", "--peer", "dc2=http://"+peer.addr["api"])
			p := startManager(t, append(args, m.args...)...)
			takesKeys(t, p)
			return p
		}
		stop := func(p *process) {
			t.Helper()
			if code := p.stop(t); code != 0 {
				t.Errorf("exit code %d: %s", code, p.stderr)
			}
			if text := p.stderr.String(); strings.Contains(text, "4242-") || strings.Contains(text, testKey("k1")) {
				t.Errorf("the log has a key or a secret: %s", text)
			}
		}

		plain := start(t)
		p := run(plain)
		useAll(t, p, peer)
		for _, dir := range plain.backups(t) { // the search finds what it looks for, in each backup
			if got := found(t, dir); !slices.Equal(got, everything) {
				t.Errorf("without encryption %s has only %q", dir, got)
			}
		}
		stop(p)

		// The same store, changed as docs/operating.md says.
		stop(run(plain, "--encryption-key-file", keyFile(t, "k1"), "--encryption-decrypt-only"))
		p = run(plain, "--encryption-key-file", keyFile(t, "k1"))
		waitFor(t, "nothing is plain", func() bool { return strings.Contains(p.stderr.String(), `"no_longer_in_use":[""]`) })
		checkSecrets(t, p.addr["api"])
		if got := found(t, plain.clean(t)...); len(got) > 0 {
			t.Errorf("once it is encrypted and cleaned the store has %q", got)
		}
		stop(p)

		// A store that is encrypted from its beginning.
		peer = startManager(t, "--store", "memory", "--origin", "dc2")
		fresh := start(t)
		p = run(fresh, "--encryption-key-file", keyFile(t, "k1"))
		useAll(t, p, peer)
		checkSecrets(t, p.addr["api"])
		for range 2 { // while it runs, and when it is over
			if got := found(t, fresh.backups(t)...); len(got) > 0 {
				t.Errorf("an encrypted store has %q", got)
			}
			if p != nil {
				stop(p)
			}
			p = nil
		}
	})
}
