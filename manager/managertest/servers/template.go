package servers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// template is a database cluster of PostgreSQL that no server has used.
type template struct {
	mu  sync.Mutex
	dir string // where it is, empty before the first use
}

// clusters is the template of the tests that run under Sharing.
var clusters template

// cluster makes a database cluster in the server's directory. Under Sharing it copies a template, which costs a small part of
// what initdb costs.
func (s *Server) cluster(ctx context.Context) error {
	if !underSharing.Load() {
		return s.initdb(ctx, s.dir)
	}
	from, err := clusters.in(ctx, s)
	if err != nil {
		return err
	}
	return s.run(ctx, "cp", "-a", filepath.Join(from, "data"), s.dir)
}

func (s *Server) initdb(ctx context.Context, dir string) error {
	return s.run(ctx, filepath.Join(filepath.Dir(s.path), "initdb"), "-D", filepath.Join(dir, "data"), "-U", "oncegate", "-A", "trust", "--no-sync",
		"-E", "UTF8", "--locale=C")
}

// run runs a program as the server's user.
func (s *Server) run(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr, cmd.Dir = s.attr, s.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(name), err, out)
	}
	return nil
}

// in returns the directory that has the template. The first call makes it, as the server's user.
func (t *template) in(ctx context.Context, s *Server) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dir == "" {
		dir, err := tempDir()
		if err != nil {
			return "", err
		}
		if _, err = unprivileged(dir); err == nil {
			err = s.initdb(ctx, dir)
		}
		if err != nil {
			_ = os.RemoveAll(dir)
			return "", err
		}
		t.dir = dir
	}
	return t.dir, nil
}

func (t *template) remove() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dir != "" {
		_ = os.RemoveAll(t.dir)
		t.dir = ""
	}
}
