package faultfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"
)

const unspecified = pebblevfs.WriteCategoryUnspecified

// put creates a file for Pebble.
func put(t *testing.T, p pebblevfs.FS, name, content string) pebblevfs.File {
	t.Helper()
	f, err := p.Create(name, unspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	return f
}

func syncDir(t *testing.T, p pebblevfs.FS, dir string) {
	t.Helper()
	d, err := p.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		t.Fatal(err)
	}
}

// pair does each operation on a disk and on Pebble's own file system in memory, and compares the answers.
type pair struct {
	t     *testing.T
	disk  *FS
	our   pebblevfs.FS
	model *pebblevfs.MemFS
	open  []openPair
}

type openPair struct{ our, model pebblevfs.File }

func newPair(t *testing.T) *pair {
	p := &pair{t: t, disk: &FS{}, model: pebblevfs.NewCrashableMem()}
	p.our = p.disk.Pebble()
	for _, fsys := range []pebblevfs.FS{p.our, p.model} {
		// A directory exists for the disk while it has files.
		for _, dir := range []string{"d", "d/state"} {
			if err := fsys.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			f := put(t, fsys, dir+"/stays", "")
			if err := errors.Join(f.Sync(), f.Close()); err != nil {
				t.Fatal(err)
			}
		}
		for _, dir := range []string{"", "d", "d/state"} {
			syncDir(t, fsys, dir)
		}
	}
	return p
}

// class is what a caller can know of an error.
func class(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, io.EOF):
		return "EOF"
	case errors.Is(err, fs.ErrNotExist):
		return "does not exist"
	case errors.Is(err, fs.ErrExist):
		return "exists"
	}
	return "error"
}

func (p *pair) both(what string, do func(pebblevfs.FS) (string, error)) bool {
	p.t.Helper()
	our, ourErr := do(p.our)
	model, modelErr := do(p.model)
	if our != model || class(ourErr) != class(modelErr) {
		p.t.Fatalf("%s: the disk answers %q, %v, the model %q, %v", what, our, ourErr, model, modelErr)
	}
	return ourErr == nil
}

func (p *pair) opens(what string, do func(pebblevfs.FS) (pebblevfs.File, error)) {
	p.t.Helper()
	var files []pebblevfs.File
	if p.both(what, func(fsys pebblevfs.FS) (string, error) {
		f, err := do(fsys)
		files = append(files, f)
		return "", err
	}) {
		p.open = append(p.open, openPair{files[0], files[1]})
	}
}

func (p *pair) onOpen(what string, rnd *rand.Rand, do func(pebblevfs.File) (string, error)) {
	p.t.Helper()
	if len(p.open) == 0 {
		return
	}
	f := p.open[rnd.IntN(len(p.open))]
	p.both(what, func(fsys pebblevfs.FS) (string, error) {
		if fsys == p.our {
			return do(f.our)
		}
		return do(f.model)
	})
}

// sameFile reports that two names are of one file, which the model renames in a way that POSIX does not.
func (p *pair) sameFile(a, b string) bool {
	return p.disk.names[a] != nil && p.disk.names[a] == p.disk.names[b]
}

// tree lists all files and contents.
func tree(t *testing.T, fsys pebblevfs.FS) string {
	t.Helper()
	var all []string
	for _, dir := range []string{"d", "d/state"} {
		names, err := fsys.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(names)
		for _, name := range names {
			name = fsys.PathJoin(dir, name)
			if name == "d/state" {
				continue
			}
			f, err := fsys.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(f)
			if err := errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprintf("%s=%q", name, b))
		}
	}
	return strings.Join(all, " ")
}

// The disk answers Pebble as Pebble's own file system in memory does, also after a crash.
func TestPebbleSeesTheFilesThatItsOwnFileSystemHas(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		p := newPair(t)
		for range 150 {
			p.step(rnd)
		}
		if our, model := tree(t, p.our), tree(t, p.model); our != model {
			t.Fatalf("seed %d: the disk has\n%s\nthe model\n%s", seed, our, model)
		}
		our, model := tree(t, p.disk.Crash().Pebble()), tree(t, p.model.CrashClone(pebblevfs.CrashCloneCfg{}))
		if our != model {
			t.Fatalf("seed %d: after a crash the disk has\n%s\nthe model\n%s", seed, our, model)
		}
	}
}

func (p *pair) step(rnd *rand.Rand) {
	p.t.Helper()
	dir := []string{"d", "d/state"}[rnd.IntN(2)]
	name, other := dir+"/"+string(rune('a'+rnd.IntN(4))), dir+"/"+string(rune('a'+rnd.IntN(4)))
	text := strings.Repeat(string(rune('A'+rnd.IntN(26))), 1+rnd.IntN(20))
	off := int64(rnd.IntN(30))
	read := func(do func([]byte) (int, error)) (string, error) {
		b := make([]byte, len(text))
		n, err := do(b)
		return string(b[:n]), err
	}
	switch rnd.IntN(18) {
	case 0, 1:
		p.opens("create "+name, func(f pebblevfs.FS) (pebblevfs.File, error) { return f.Create(name, unspecified) })
	case 2:
		p.opens("open "+name, func(f pebblevfs.FS) (pebblevfs.File, error) { return f.Open(name) })
	case 3:
		p.opens("open to write "+name, func(f pebblevfs.FS) (pebblevfs.File, error) { return f.OpenReadWrite(name, unspecified) })
	case 4:
		p.both("link "+name+" to "+other, func(f pebblevfs.FS) (string, error) { return "", f.Link(name, other) })
	case 5:
		if !p.sameFile(name, other) {
			p.both("rename "+name+" to "+other, func(f pebblevfs.FS) (string, error) { return "", f.Rename(name, other) })
		}
	case 6:
		p.both("remove "+name, func(f pebblevfs.FS) (string, error) { return "", f.Remove(name) })
	case 7:
		p.both("remove a directory", func(f pebblevfs.FS) (string, error) { return "", f.Remove("d/state") })
	case 8:
		p.both("remove all of "+name, func(f pebblevfs.FS) (string, error) { return "", f.RemoveAll(name) })
	case 9:
		if !p.sameFile(name, other) {
			p.both("reuse "+name+" as "+other, func(f pebblevfs.FS) (string, error) {
				g, err := f.ReuseForWrite(name, other, unspecified)
				if err != nil {
					return "", err
				}
				_, err = g.Write([]byte(text))
				return "", errors.Join(err, g.Close())
			})
		}
	case 10:
		p.both("list "+dir, func(f pebblevfs.FS) (string, error) {
			names, err := f.List(dir)
			slices.Sort(names)
			return strings.Join(names, " "), err
		})
	case 11:
		for _, name := range []string{name, dir} {
			p.both("stat "+name, func(f pebblevfs.FS) (string, error) {
				i, err := f.Stat(name)
				if err != nil {
					return "", err
				}
				return fmt.Sprint(i.Name(), i.Size(), i.IsDir()), nil
			})
		}
	case 12:
		p.onOpen("write", rnd, func(f pebblevfs.File) (string, error) {
			_, err := f.Write([]byte(text))
			return "", err
		})
	case 13:
		p.onOpen("write at", rnd, func(f pebblevfs.File) (string, error) {
			_, err := f.WriteAt([]byte(text), off)
			return "", err
		})
	case 14:
		p.onOpen("read", rnd, func(f pebblevfs.File) (string, error) { return read(f.Read) })
		p.onOpen("read at", rnd, func(f pebblevfs.File) (string, error) {
			return read(func(b []byte) (int, error) { return f.ReadAt(b, off) })
		})
	case 15:
		p.onOpen("sync", rnd, func(f pebblevfs.File) (string, error) { return "", f.Sync() })
	case 16:
		p.both("sync "+dir, func(f pebblevfs.FS) (string, error) {
			d, err := f.OpenDir(dir)
			if err != nil {
				return "", err
			}
			return "", errors.Join(d.Sync(), d.Close())
		})
	case 17:
		if len(p.open) > 0 {
			i := rnd.IntN(len(p.open))
			f := p.open[i]
			p.open = slices.Delete(p.open, i, i+1)
			if err := errors.Join(f.our.Close(), f.model.Close()); err != nil {
				p.t.Fatal(err)
			}
		}
	}
}

// Each operation of Pebble calls the hook, which can fail it.
func TestHooksSeePebblesOperations(t *testing.T) {
	b := make([]byte, 1)
	for _, c := range []struct {
		kinds string
		do    func(p pebblevfs.FS, f pebblevfs.File) error // f is d/a
	}{
		{"create", func(p pebblevfs.FS, _ pebblevfs.File) error { return opened(p.Create("d/new", unspecified)) }},
		{"remove create", func(p pebblevfs.FS, _ pebblevfs.File) error { return opened(p.Create("d/a", unspecified)) }},
		{"link", func(p pebblevfs.FS, _ pebblevfs.File) error { return p.Link("d/a", "d/b") }},
		{"open", func(p pebblevfs.FS, _ pebblevfs.File) error { return opened(p.Open("d/a")) }},
		{"open", func(p pebblevfs.FS, _ pebblevfs.File) error { return opened(p.OpenReadWrite("d/a", unspecified)) }},
		{"create", func(p pebblevfs.FS, _ pebblevfs.File) error { return opened(p.OpenReadWrite("d/new", unspecified)) }},
		{"rename", func(p pebblevfs.FS, _ pebblevfs.File) error { return p.Rename("d/a", "d/b") }},
		{"rename open", func(p pebblevfs.FS, _ pebblevfs.File) error {
			return opened(p.ReuseForWrite("d/a", "d/b", unspecified))
		}},
		{"stat", func(p pebblevfs.FS, _ pebblevfs.File) error { _, err := p.Stat("d/a"); return err }},
		{"list", func(p pebblevfs.FS, _ pebblevfs.File) error { _, err := p.List("d"); return err }},
		{"create close", func(p pebblevfs.FS, _ pebblevfs.File) error { _, err := p.Lock("d/LOCK"); return err }},
		{"remove", func(p pebblevfs.FS, _ pebblevfs.File) error { return p.Remove("d/a") }},
		{"remove remove", func(p pebblevfs.FS, _ pebblevfs.File) error { return p.RemoveAll("d") }},
		{"open stat syncdir syncdir close", func(p pebblevfs.FS, _ pebblevfs.File) error {
			d, err := p.OpenDir("d")
			if err != nil {
				return err
			}
			_, err = d.Stat()
			return errors.Join(err, d.Sync(), d.SyncData(), d.Close())
		}},
		{"stat", func(_ pebblevfs.FS, f pebblevfs.File) error { _, err := f.Stat(); return err }},
		{"write", func(_ pebblevfs.FS, f pebblevfs.File) error { _, err := f.Write(b); return err }},
		{"write", func(_ pebblevfs.FS, f pebblevfs.File) error { _, err := f.WriteAt(b, 0); return err }},
		{"read", func(_ pebblevfs.FS, f pebblevfs.File) error { _, err := f.ReadAt(b, 0); return err }},
		{"read", func(p pebblevfs.FS, f pebblevfs.File) error {
			_, err := f.Read(b)
			if errors.Is(err, io.EOF) { // the position is at the end
				err = nil
			}
			return err
		}},
		{"sync sync", func(_ pebblevfs.FS, f pebblevfs.File) error { return errors.Join(f.Sync(), f.SyncData()) }},
		{"allocate", func(_ pebblevfs.FS, f pebblevfs.File) error { return f.Preallocate(0, 1) }},
		{"close", func(_ pebblevfs.FS, f pebblevfs.File) error { return f.Close() }},
	} {
		// run lets the n-th operation fail.
		run := func(n int) (kinds []string, err error) {
			disk := &FS{}
			p := disk.Pebble()
			f := put(t, p, "d/a", "content")
			put(t, p, "d/state/a", "")
			disk.SetHook(func(op Op) error {
				kinds = append(kinds, op.Kind)
				if len(kinds) == n {
					return syscall.EIO
				}
				return nil
			})
			err = c.do(p, f)
			return kinds, err
		}
		kinds, err := run(0)
		if got := strings.Join(kinds, " "); got != c.kinds || err != nil {
			t.Errorf("want %s, the hook saw %s, and the answer is %v", c.kinds, got, err)
		}
		for n := range kinds {
			if _, err := run(n + 1); !errors.Is(err, syscall.EIO) {
				t.Errorf("%s: operation %d failed, the answer is %v", c.kinds, n+1, err)
			}
		}
	}
}

func opened(_ pebblevfs.File, err error) error { return err }

// A sync of a directory makes the names in it durable, and no others; the lists of two directories are apart.
func TestDirectoriesAreApart(t *testing.T) {
	disk := &FS{}
	p := disk.Pebble()
	for _, name := range []string{"d/log", "d/state/table"} {
		f := put(t, p, name, "content")
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if err := disk.SyncDir("d"); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(disk.Crash().Names(), " "); got != "d/log" {
		t.Errorf("after a sync of d and a crash there are %s", got)
	}
	syncDir(t, p, "d/state")
	if got := strings.Join(disk.Crash().Names(), " "); got != "d/log d/state/table" {
		t.Errorf("after both syncs and a crash there are %s", got)
	}
	if names, err := disk.List("d"); err != nil || strings.Join(names, " ") != "log" {
		t.Errorf("the log sees %v, %v", names, err)
	}
	if err := p.Rename("d/log", "d/state/log"); !errors.Is(err, syscall.EXDEV) {
		t.Errorf("a rename between directories: %v", err)
	}
}

// Of the changes of names through Pebble's view, a random crash loses the last ones.
func TestNamesReachTheDiskInOrder(t *testing.T) {
	seen := make(map[string]bool)
	for seed := range uint64(200) {
		disk := &FS{}
		p := disk.Pebble()
		put(t, p, "d/old", "")
		syncDir(t, p, "d")
		put(t, p, "d/table", "")
		err := errors.Join(p.Link("d/table", "d/link"), p.Rename("d/table", "d/moved"), p.Remove("d/old"))
		if err != nil {
			t.Fatal(err)
		}
		seen[strings.Join(disk.CrashRandomly(rand.New(rand.NewPCG(seed, 2))).Names(), " ")] = true
	}
	want := []string{"d/link d/moved", "d/link d/moved d/old", "d/link d/old d/table", "d/old", "d/old d/table"}
	if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) {
		t.Errorf("crashes leave %q", got)
	}
}

// The two names of a file stay names of one file through a crash.
func TestLinkSurvivesACrash(t *testing.T) {
	disk := &FS{}
	p := disk.Pebble()
	f := put(t, p, "d/a", "content")
	if err := errors.Join(p.Link("d/a", "d/b"), f.Sync()); err != nil {
		t.Fatal(err)
	}
	syncDir(t, p, "d")
	if disk.Used() != 7 {
		t.Errorf("two names of 7 bytes use %d", disk.Used())
	}
	after := disk.Crash()
	after.Flip("d/a", 0, 0x20)
	if got := string(after.Crash().Content("d/b")); got != "Content" {
		t.Errorf("the other name has %q", got)
	}
}

// Space that was reserved is used, without making the file longer; a full disk refuses more.
func TestDiskUsage(t *testing.T) {
	disk := &FS{}
	disk.SetCapacity(100)
	p := disk.Pebble()
	f := put(t, p, "d/a", "content")
	if err := f.Preallocate(0, 60); err != nil {
		t.Fatal(err)
	}
	if i, err := f.Stat(); err != nil || i.Size() != 7 {
		t.Errorf("the file has %v, %v", i, err)
	}
	if u, err := p.GetDiskUsage("d"); err != nil || u != (pebblevfs.DiskUsage{AvailBytes: 40, TotalBytes: 100, UsedBytes: 60}) {
		t.Errorf("usage is %+v, %v", u, err)
	}
	if _, err := put(t, p, "d/b", strings.Repeat("x", 40)).Write([]byte("x")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a write to a full disk: %v", err)
	}
}

func TestOneHolderOfALock(t *testing.T) {
	disk := &FS{}
	p := disk.Pebble()
	l, err := p.Lock("d/LOCK")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Lock("d/LOCK"); err == nil {
		t.Error("a second one has the lock too")
	}
	if again, err := disk.Clone().Pebble().Lock("d/LOCK"); err != nil {
		t.Errorf("after a crash: %v", err)
	} else if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Lock("d/LOCK"); err != nil {
		t.Errorf("after the release: %v", err)
	}
}
