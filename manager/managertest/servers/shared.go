package servers

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Share is the part of a test in a server that the tests of a binary share: data of its own. A test must start a server of
// its own if it stops or configures the server, or looks at anything but its data.
type Share struct {
	// URL is how a client reaches the test's data, in the form its engine's options take. To that of etcd, which ends with
	// the prefix, a test may append a slash and a name.
	URL string
	// Address is where the server listens: the path of a unix socket, or host:port for etcd.
	Address string
	// Name is the name of a database of PostgreSQL, a prefix of etcd, or the number of a database of Redis.
	Name string
}

// Tests are the tests of a binary.
type Tests interface{ Run() int }

// Sharing lets the tests of a binary share servers, and ends these servers after the tests:
//
//	func TestMain(m *testing.M) { os.Exit(servers.Sharing(m).Run()) }
func Sharing(tests Tests) Tests { return sharing{tests} }

type sharing struct{ Tests }

// underSharing reports whether Sharing runs the tests.
var underSharing atomic.Bool

func (s sharing) Run() int {
	underSharing.Store(true)
	defer func() {
		underSharing.Store(false)
		for _, server := range []*shared{&postgres, &etcd, &redis} {
			server.end()
		}
		clusters.remove()
	}()
	return s.Tests.Run()
}

// shared is a server that the tests of a binary share. The first test that needs it starts it.
type shared struct {
	start func(context.Context, ...string) (*Server, error)
	args  []string

	mu     sync.Mutex
	server *Server
	shares int
}

const redisDatabases = 4096

var (
	postgres = shared{start: StartPostgres, args: []string{"-c", "max_connections=1000"}}
	etcd     = shared{start: StartEtcd}
	redis    = shared{start: StartRedis, args: []string{"--databases", fmt.Sprint(redisDatabases)}}
)

// share returns the server and a number that no other test has.
func (s *shared) share(tb testing.TB) (*Server, int) {
	tb.Helper()
	if !underSharing.Load() {
		tb.Fatal("the tests share servers, and TestMain does not call servers.Sharing")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		server, err := s.start(context.WithoutCancel(tb.Context()), s.args...)
		if err != nil {
			tb.Fatal(err)
		}
		s.server = server
	}
	s.shares++
	return s.server, s.shares
}

func (s *shared) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		s.server.Close()
		s.server = nil
	}
}

// SharedPostgres gives the test an empty database, which is dropped after the test. Roles, settings and the views of
// activity and locks are the server's.
func SharedPostgres(tb testing.TB) Share {
	tb.Helper()
	srv, n := postgres.share(tb)
	name := fmt.Sprint("test_", n)
	exec := func(statement string) {
		tb.Helper()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), startTimeout)
		defer cancel()
		conn, err := pgx.Connect(ctx, srv.URL)
		if err == nil {
			_, err = conn.Exec(ctx, statement)
			_ = conn.Close(ctx)
		}
		if err != nil {
			tb.Fatalf("%s: %v", statement, err)
		}
	}
	exec(`CREATE DATABASE ` + name)
	tb.Cleanup(func() { exec(`DROP DATABASE ` + name + ` WITH (FORCE)`) })
	return Share{URL: strings.Replace(srv.URL, "dbname=postgres", "dbname="+name, 1), Address: srv.Socket, Name: name}
}

// SharedEtcd gives the test a prefix that is empty. Revisions, compaction, alarms and users are the server's.
func SharedEtcd(tb testing.TB) Share {
	tb.Helper()
	srv, n := etcd.share(tb)
	name := fmt.Sprint("/test", n)
	return Share{URL: srv.URL + "?prefix=" + name, Address: strings.TrimPrefix(srv.URL, "http://"), Name: name}
}

// SharedRedis gives the test an empty database. Settings, users and the channels of subscribers are the server's, so tests
// that count wake-ups need namespaces of their own as well.
func SharedRedis(tb testing.TB) Share {
	tb.Helper()
	srv, n := redis.share(tb)
	if n >= redisDatabases {
		tb.Fatalf("the tests of a binary have %d databases of Redis", redisDatabases)
	}
	name := fmt.Sprint(n)
	return Share{URL: "unix://" + srv.Socket + "?db=" + name, Address: srv.Socket, Name: name}
}
