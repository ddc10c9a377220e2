// Package servers starts real Redis, PostgreSQL and etcd servers for tests: each
// in a directory of its own, reachable only through a unix socket, or for etcd on
// a loopback address of its own, ended with the test. Several test binaries may
// do so at once.
//
// Most tests need data of their own, and no server of their own: SharedRedis,
// SharedPostgres and SharedEtcd start one server for all tests of a binary.
//
// A server that cannot be started fails the test. A run that silently left an
// engine out would prove nothing about it. Programs that are not tests (the
// comparison with other systems) use StartRedis, StartPostgres, StartEtcd and StartProgram.
package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// startTimeout is generous: machines that run tests are shared.
const startTimeout = 2 * time.Minute

// Server is a running server process.
type Server struct {
	// URL is how a client reaches it, in the form its engine's options take.
	URL string
	// Socket is the path of its unix socket; empty for etcd.
	Socket string

	dir    string
	host   string // its address, for servers that others connect to
	path   string
	args   []string
	attr   *syscall.SysProcAttr
	ready  func(context.Context) error
	cmd    *exec.Cmd
	exited chan struct{}
	log    syncBuffer
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Redis starts a server for the test, see StartRedis.
func Redis(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s, err := StartRedis(tb.Context(), args...)
	return forTest(tb, s, err)
}

// Postgres starts a server for the test, see StartPostgres.
func Postgres(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s, err := StartPostgres(tb.Context(), args...)
	return forTest(tb, s, err)
}

// forTest ends a server with the test. It fails the test if the server was not started.
func forTest(tb testing.TB, s *Server, err error) *Server {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

// StartRedis starts a redis-server with appendonly and appendfsync always; args
// are appended to its command line and may override that. The caller must call
// Close.
func StartRedis(ctx context.Context, args ...string) (*Server, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("redis-server is not installed; `make test` installs it: %w", err)
	}
	return startRedis(ctx, path, args)
}

func startRedis(ctx context.Context, path string, args []string) (*Server, error) {
	dir, err := tempDir()
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "redis.sock")
	s := &Server{
		URL:    "unix://" + socket + "?db=0",
		Socket: socket,
		dir:    dir,
		path:   path,
		args: append([]string{"--port", "0", "--unixsocket", socket, "--dir", dir, "--save", "", "--appendonly", "yes",
			"--appendfsync", "always", "--maxmemory-policy", "noeviction", "--daemonize", "no"}, args...),
		ready: func(ctx context.Context) error { return pingRedis(ctx, socket) },
	}
	return s.started(ctx, nil)
}

// StartPostgres creates a database cluster with fsync on and starts a server on
// it; args are appended to its command line. Run as root, the server gets the
// "postgres" user, because it refuses to run as root. The caller must call
// Close.
func StartPostgres(ctx context.Context, args ...string) (*Server, error) {
	bin, err := postgresBin()
	if err != nil {
		return nil, err
	}
	s, err := newPostgres(filepath.Join(bin, "postgres"), args...)
	if err != nil {
		return nil, err
	}
	return s.started(ctx, s.cluster(ctx))
}

// newPostgres returns a server without data, which does not run yet.
func newPostgres(path string, args ...string) (*Server, error) {
	dir, err := tempDir()
	if err != nil {
		return nil, err
	}
	s := &Server{
		URL:    "host=" + dir + " user=oncegate dbname=postgres sslmode=disable",
		Socket: filepath.Join(dir, ".s.PGSQL.5432"),
		dir:    dir,
		path:   path,
		args: append([]string{"-D", filepath.Join(dir, "data"), "-k", dir, "-c", "listen_addresses=", "-c", "fsync=on",
			"-c", "max_connections=200"}, args...),
	}
	s.ready = func(ctx context.Context) error {
		if _, err := os.Stat(s.Socket); err != nil {
			return err // costs less than a process
		}
		return exec.CommandContext(ctx, filepath.Join(filepath.Dir(path), "pg_isready"), "-h", dir).Run()
	}
	if s.attr, err = unprivileged(dir); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func postgresBin() (string, error) {
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	if p, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(p); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		complete := true
		for _, name := range []string{"initdb", "postgres", "pg_isready"} {
			if _, err := os.Stat(filepath.Join(dirs[i], name)); err != nil {
				complete = false
			}
		}
		if complete {
			return dirs[i], nil
		}
	}
	return "", errors.New("postgresql is not installed (looked for initdb, postgres and pg_isready on PATH and in /usr/lib/postgresql); `make test` installs it")
}

// unprivileged returns how to start a process as somebody who is not root, and
// gives dir to that user. Nil when the caller is not root.
func unprivileged(dir string) (*syscall.SysProcAttr, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	var errs []error
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2, os.Chown(dir, int(uid), int(gid))); err != nil {
			errs = append(errs, err)
			continue
		}
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
	}
	return nil, fmt.Errorf("the server must not run as root, and there is no user to run it as: %w", errors.Join(errs...))
}

// tempDir is short, unlike TB.TempDir: a unix socket's path has about 100 bytes.
func tempDir() (string, error) { return os.MkdirTemp("", "oncegate") }

// StartProgram starts any program, in an empty directory, and waits until ready returns nil. ready gets what the program
// has printed so far. The caller must call Close.
func StartProgram(ctx context.Context, ready func(ctx context.Context, printed string) error, path string, args ...string) (*Server, error) {
	dir, err := tempDir()
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, path: path, args: args}
	s.ready = func(ctx context.Context) error { return ready(ctx, s.Printed()) }
	return s.started(ctx, nil)
}

// Printed is what the server has printed so far.
func (s *Server) Printed() string { return s.log.String() }

// started starts the server, unless it was not prepared because of err. A server that does not run is closed.
func (s *Server) started(ctx context.Context, err error) (*Server, error) {
	if err == nil {
		err = s.Start(ctx)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Dir has the server's files: its data, and for PostgreSQL and Redis its socket.
func (s *Server) Dir() string { return s.dir }

// PostgresProgram is the path of a program that belongs to the server, such as pg_dump.
func PostgresProgram(name string) (string, error) {
	bin, err := postgresBin()
	return filepath.Join(bin, name), err
}

// PID is the process that Start has started, 0 when there is none.
func (s *Server) PID() int {
	if s.cmd == nil {
		return 0
	}
	return s.cmd.Process.Pid
}

// Close ends the server and removes its data.
func (s *Server) Close() {
	s.Kill()
	_ = os.RemoveAll(s.dir)
}

// Start starts the server (again, on the same data) and waits until it answers.
func (s *Server) Start(ctx context.Context) error {
	cmd := exec.Command(s.path, s.args...)
	cmd.Dir, cmd.SysProcAttr = s.dir, new(syscall.SysProcAttr)
	if s.attr != nil {
		*cmd.SysProcAttr = *s.attr
	}
	cmd.SysProcAttr.Pdeathsig = s.deadly() // a test binary that is killed closes no server
	cmd.Stdout, cmd.Stderr = io.Writer(&s.log), io.Writer(&s.log)
	began, exited := make(chan error), make(chan struct{})
	go func() {
		defer close(exited)
		// The kernel sends the signal when the thread that started the process ends, so that thread must live as long.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		began <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-began; err != nil {
		return fmt.Errorf("start %s: %w", s.path, err)
	}
	s.cmd, s.exited = cmd, exited
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if s.ready(ctx) == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-exited:
			return fmt.Errorf("%s ended at once:\n%s", s.path, s.log.String())
		case <-ctx.Done():
			s.Kill()
			return fmt.Errorf("%s did not answer: %w\n%s", s.path, ctx.Err(), s.log.String())
		}
	}
}

// Kill ends the server the hard way and waits until it is gone.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(s.deadly())
	<-s.exited
	s.cmd = nil
}

// deadly is SIGKILL; for PostgreSQL it is the signal of an immediate shutdown, because the children of a killed postmaster
// linger.
func (s *Server) deadly() syscall.Signal {
	if filepath.Base(s.path) == "postgres" {
		return syscall.SIGQUIT
	}
	return syscall.SIGKILL
}
