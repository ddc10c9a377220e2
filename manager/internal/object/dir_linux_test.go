package object_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/oncegate/oncegate/manager/internal/object"
)

// knowsDirectWrites reports whether the file system of dir has them.
func knowsDirectWrites(t *testing.T, dir string) bool {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "probe"), os.O_RDWR|os.O_CREATE|unix.O_DIRECT, 0o600)
	if err != nil {
		t.Logf("no direct writes here: %v", err)
		return false
	}
	return f.Close() == nil
}

// TestDirectoryWritesLargeBodiesDirectly: of bodies of all sizes and addresses in memory, the pages that can go past the page
// cache do, and each is read as it was written.
func TestDirectoryWritesLargeBodiesDirectly(t *testing.T) {
	dir := t.TempDir()
	direct := knowsDirectWrites(t, dir)
	s := object.OpenDir(filepath.Join(dir, "store"))
	memory := make([]byte, 4<<20) // large memory has pages of its own
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(memory)
	for _, c := range []struct {
		name       string
		start, end int
		pages      int
	}{
		{"small", 0, object.DirectBytes - 1, 0},
		{"pages", 0, object.DirectBytes, object.DirectBytes / object.Alignment},
		{"pages-and-a-byte", object.Alignment, 2<<20 + object.Alignment + 1, 2 << 20 / object.Alignment},
		{"all-but-a-byte", 0, 4<<20 - 1, 4<<20/object.Alignment - 1},
		{"not-aligned", 8, 2 << 20, 0},
	} {
		body := memory[c.start:c.end]
		f, err := os.Create(filepath.Join(dir, c.name))
		if err != nil {
			t.Fatal(err)
		}
		want := 0
		if direct {
			want = c.pages * object.Alignment
		}
		if n := object.WriteDirectly(f, body); n != want {
			t.Errorf("%s: %d of %d bytes were written directly, want %d", c.name, n, len(body), want)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		version, err := s.Create(t.Context(), c.name, body)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if b, v, err := s.Get(t.Context(), c.name); err != nil || v != version || !bytes.Equal(b, body) {
			t.Errorf("%s: %d bytes of version %s, written were %d of %s; %v", c.name, len(b), v, len(body), version, err)
		}
	}
}

// TestDirectoryWithoutDirectWrites: a file that takes no direct write, as on some file systems, is written as always.
func TestDirectoryWithoutDirectWrites(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if n := object.WriteDirectly(w, make([]byte, 2<<20)); n != 0 {
		t.Errorf("%d bytes were written directly", n)
	}
}
