package postgres

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store/storetest"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// patroniNode is a Patroni with its Postgres, on an address of its own.
type patroniNode struct {
	name, ip, dir string
	attr          *syscall.SysProcAttr
	cmd           *exec.Cmd
	exited        chan struct{}
	log           bytes.Buffer
}

// The settings are those of docs/stores.md. loop_wait and ttl are as short as Patroni takes them.
const patroniConfig = `
scope: oncegate
name: %[1]s
restapi: {listen: "%[2]s:8008", connect_address: "%[2]s:8008"}
etcd3: {hosts: "%[3]s"}
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 2
    retry_timeout: 5
    synchronous_mode: true
    synchronous_mode_strict: true
    synchronous_node_count: 1
    primary_start_timeout: 0
    postgresql:
      use_pg_rewind: true
      parameters: {fsync: "on", synchronous_commit: "on", wal_log_hints: "on", max_connections: 100}
  initdb: [{encoding: UTF8}, {locale: C}]
  pg_hba: ["local all all trust", "host all all 127.0.0.0/8 trust", "host replication all 127.0.0.0/8 trust"]
postgresql:
  listen: "%[2]s:5432"
  connect_address: "%[2]s:5432"
  data_dir: %[4]s/data
  bin_dir: %[5]s
  pgpass: %[4]s/pgpass
  authentication:
    superuser: {username: oncegate}
    replication: {username: oncegate}
    rewind: {username: oncegate}
  parameters: {unix_socket_directories: %[4]s}
`

func newPatroniNode(t *testing.T, name, etcd, bin string) *patroniNode {
	t.Helper()
	dir, err := os.MkdirTemp("", "oncegate")
	if err != nil {
		t.Fatal(err)
	}
	n := &patroniNode{name: name, dir: dir, ip: fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))}
	for _, port := range []string{":5432", ":8008"} {
		l, err := net.Listen("tcp", n.ip+port)
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
	}
	if os.Getuid() == 0 {
		u, err := user.Lookup("postgres")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		if err := os.Chown(dir, uid, gid); err != nil {
			t.Fatal(err)
		}
		n.attr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	if err := os.WriteFile(filepath.Join(dir, "patroni.yml"), fmt.Appendf(nil, patroniConfig, name, n.ip, strings.TrimPrefix(etcd, "http://"), dir, bin), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.kill()
		if t.Failed() {
			t.Logf("%s: %s", name, n.log.String())
		}
		_ = os.RemoveAll(dir)
	})
	return n
}

func (n *patroniNode) start(t *testing.T) {
	t.Helper()
	n.cmd = exec.Command("patroni", filepath.Join(n.dir, "patroni.yml"))
	n.cmd.Dir, n.cmd.SysProcAttr, n.cmd.Stdout, n.cmd.Stderr = n.dir, n.attr, &n.log, &n.log
	n.cmd.WaitDelay = time.Second // its Postgres keeps the pipe
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited, cmd := make(chan struct{}), n.cmd
	n.exited = exited
	go func() { _ = cmd.Wait(); close(exited) }()
}

// kill is kill -9 of Patroni and of its Postgres.
func (n *patroniNode) kill() {
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Kill()
	if text, err := os.ReadFile(filepath.Join(n.dir, "data", "postmaster.pid")); err == nil {
		line, _, _ := strings.Cut(string(text), "\n")
		if pid, err := strconv.Atoi(line); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	<-n.exited
	n.cmd = nil
}

// is asks Patroni whether the node is the "primary", or the "sync" standby.
func (n *patroniNode) is(role string) bool {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + n.ip + ":8008/" + role)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Patroni replaces leaders that are killed under load, as often as PATRONI_ROUNDS says. Nothing acknowledged is lost.
func TestPatroniFailover(t *testing.T) {
	rounds, _ := strconv.Atoi(os.Getenv("PATRONI_ROUNDS"))
	if rounds == 0 {
		t.Skip("PATRONI_ROUNDS is not set; make test-long sets it")
	}
	bins, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	if len(bins) == 0 {
		t.Fatal("no Postgres in /usr/lib/postgresql")
	}
	etcd := servers.Etcd(t)
	var nodes []*patroniNode
	var hosts []string
	for _, name := range []string{"a", "b", "c"} {
		n := newPatroniNode(t, name, etcd.URL, bins[len(bins)-1])
		n.start(t)
		nodes, hosts = append(nodes, n), append(hosts, n.ip)
	}
	dsn := "postgres://oncegate@" + strings.Join(hosts, ",") + "/postgres?sslmode=disable&target_session_attrs=read-write&connect_timeout=3"
	var s *Store
	until(t, func() bool {
		if s == nil {
			var err error
			if s, err = Open(t.Context(), Options{DSN: dsn, RequireSyncStandbys: 1}); err != nil {
				return false
			}
		}
		return s.Capabilities().Replication().Missing == ""
	})
	defer s.Close()

	var mu sync.Mutex
	acked := map[string]bool{}
	written := func() int { mu.Lock(); defer mu.Unlock(); return len(acked) }
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var load sync.WaitGroup
	for w := range 8 {
		load.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				key := fmt.Sprintf("load-%d-%d", w, i)
				if storetest.Put(ctx, s, key, "1") == nil {
					mu.Lock()
					acked[key] = true
					mu.Unlock()
				} else {
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
	}
	for round := range rounds {
		before := written()
		until(t, func() bool { return written() >= before+200 })
		// Patroni promotes only a standby that its own record names as synchronous, which takes a moment.
		var leader *patroniNode
		until(t, func() bool {
			leader = nil
			synchronous := false
			for _, n := range nodes {
				if n.is("primary") {
					leader = n
				}
				synchronous = synchronous || n.is("sync")
			}
			return leader != nil && synchronous
		})
		leader.kill()
		at, killed := written(), time.Now()
		until(t, func() bool { return written() >= at+200 })
		t.Logf("round %d: %s killed after %d acknowledged writes, served again within %v", round, leader.name, at, time.Since(killed).Round(time.Second))
		leader.start(t)
	}
	stop()
	load.Wait()
	for key := range acked {
		v, err := storetest.Get(t.Context(), s, key)
		if err != nil || v != "1" {
			t.Errorf("%s was acknowledged: %q, %v", key, v, err)
		}
	}
	t.Logf("%d acknowledged writes, all there", len(acked))
}
