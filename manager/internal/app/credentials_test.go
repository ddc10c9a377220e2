package app

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/settings"
)

// take returns what was written since the last call.
func (l *lockedBuffer) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.b.Reset()
	return l.b.String()
}

// TestChangedFilesAreReadAgain: a file of tokens that changes in place, by a rename, or as Kubernetes changes a Secret counts
// without a signal. A mistake is logged once.
func TestChangedFilesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	// As a kubelet does it: tokens is a link into ..data, which is a link to a folder that is replaced.
	swap := func(version, text string) {
		t.Helper()
		write(filepath.Join(dir, version, "tokens"), text)
		next := filepath.Join(dir, "..next")
		if err := errors.Join(os.Symlink(version, next), os.Rename(next, filepath.Join(dir, "..data"))); err != nil {
			t.Fatal(err)
		}
	}
	swap("..1", "0123456789abcdef gate\n")
	file := filepath.Join(dir, "tokens")
	if err := os.Symlink(filepath.Join("..data", "tokens"), file); err != nil {
		t.Fatal(err)
	}
	auth, err := httpd.NewAuth(file, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "..1", "tokens"), []byte("0123456789abcdef gate\nfedcba9876543210 operator\n"), 0o600); err != nil { // while the manager starts
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		log := new(lockedBuffer)
		a := &app{settings: &settings.Settings{TokenFile: file}, auth: auth, log: slog.New(slog.NewTextHandler(log, nil))}
		ctx, cancel := context.WithCancel(t.Context())
		go a.reload(ctx)
		tick := func() string {
			time.Sleep(checkFilesEvery)
			synctest.Wait()
			return log.take()
		}
		synctest.Wait()
		if words := auth.TokenWords(); len(words) != 2 {
			t.Errorf("a change during the start is missed: %q", words)
		}
		if got := tick(); got != "" {
			t.Errorf("without a change: %s", got)
		}
		for i, change := range []func(){
			func() { swap("..2", "0123456789abcdef gate\nfedcba9876543210 worker\n") },
			func() { write(file, "0123456789abcdef gate\n# in place\nfedcba9876543210 worker\n") },
			func() {
				other := filepath.Join(dir, "other")
				write(other, "0123456789abcdef gate\n")
				if err := os.Rename(other, file); err != nil {
					t.Fatal(err)
				}
			},
		} {
			change()
			if got := tick(); !strings.Contains(got, `msg="tokens reloaded"`) {
				t.Errorf("change %d: %q", i, got)
			}
			if got := tick(); got != "" {
				t.Errorf("after change %d: %s", i, got)
			}
		}
		write(file, "short\n")
		if got := tick(); !strings.Contains(got, "tokens not reloaded; the previous one stays in use") {
			t.Errorf("a mistake: %q", got)
		}
		if got := tick(); got != "" {
			t.Errorf("the mistake again: %s", got)
		}
		if !auth.TokensAsked() {
			t.Error("the tokens are gone")
		}
		cancel()
	})
}
