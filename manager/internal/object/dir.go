package object

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/minio/crc64nvme"
	"golang.org/x/sys/unix"

	"github.com/oncegate/oncegate/manager/internal/filelock"
)

// dirStore keeps each object as a file of a directory. What it answers is durable.
// Several processes may use one directory.
type dirStore struct {
	dir     string
	synced  sync.Map // directories whose names are durable
	cleaned sync.Map // directories without files that killed writers left
	// failed is why a directory could not be synced. A file system may answer the next sync with success and have lost the
	// names anyway, so nothing is written or read any more.
	failed atomic.Pointer[error]
	sync   func(*os.File) error // of a directory
}

// OpenDir makes a store of a directory, which the first object creates.
func OpenDir(dir string) Store { return &dirStore{dir: dir, sync: (*os.File).Sync} }

// Names of objects never begin with a dot.
const (
	dirLock = ".lock"
	dirTemp = ".new-"
)

func (s *dirStore) String() string { return (&url.URL{Scheme: "file", Path: s.dir}).String() }

func (s *dirStore) path(name string) string { return filepath.Join(s.dir, filepath.FromSlash(name)) }

func (s *dirStore) Create(ctx context.Context, name string, body []byte) (Version, error) {
	return s.write(ctx, name, body, func() error {
		_, err := os.Lstat(s.path(name))
		if err == nil {
			return fmt.Errorf("%w: %s", ErrExists, name)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
}

func (s *dirStore) Replace(ctx context.Context, name string, body []byte, old Version) (Version, error) {
	return s.write(ctx, name, body, func() error {
		b, err := os.ReadFile(s.path(name))
		if errors.Is(err, fs.ErrNotExist) || err == nil && versionOf(b) != old {
			return fmt.Errorf("%w: %s", ErrChanged, name)
		}
		return err
	})
}

// write writes body under the name if check, which runs under the lock of all writers,
// returns nil. The body is durable before the lock is taken, so no writer waits for
// the disk writes of another one.
func (s *dirStore) write(ctx context.Context, name string, body []byte, check func() error) (Version, error) {
	if err := errors.Join(checkBody(name, body), ctx.Err(), s.err()); err != nil {
		return "", err
	}
	p := s.path(name)
	if _, err := os.Stat(filepath.Dir(p)); err != nil { // the directory was removed, or is new: sync all names again
		s.synced.Clear()
	}
	s.removeLeft(filepath.Dir(p))
	if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(filepath.Dir(p), dirTemp+"*")
	if err != nil {
		return "", err
	}
	if _, err = f.Write(body); err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = s.rename(ctx, f.Name(), p, check)
	}
	if err != nil {
		if left := os.Remove(f.Name()); !errors.Is(left, fs.ErrNotExist) {
			err = errors.Join(err, left)
		}
		return "", err
	}
	return versionOf(body), nil
}

// leftAfter is the age at which a new file is one that a killed writer left.
const leftAfter = time.Hour

// removeLeft removes what killed writers left in a directory, when this process first writes there.
func (s *dirStore) removeLeft(dir string) {
	if _, seen := s.cleaned.LoadOrStore(dir, true); seen {
		return
	}
	files, _ := os.ReadDir(dir) // the write that follows fails as well
	for _, f := range files {
		if !strings.HasPrefix(f.Name(), dirTemp) {
			continue
		}
		if info, err := f.Info(); err == nil && time.Since(info.ModTime()) > leftAfter {
			_ = os.Remove(filepath.Join(dir, f.Name())) // the next process tries again
		}
	}
}

// rename gives the file its name if check returns nil. The name is durable before the lock ends, so the next writer's
// check finds nothing that a crash could undo.
func (s *dirStore) rename(ctx context.Context, file, name string, check func() error) error {
	lock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := s.err(); err != nil {
		return err
	}
	if err := check(); err != nil {
		return err
	}
	if err := os.Rename(file, name); err != nil {
		return err
	}
	return s.syncUp(filepath.Dir(name))
}

func (s *dirStore) lock(ctx context.Context) (*filelock.Lock, error) {
	f, err := os.OpenFile(filepath.Join(s.dir, dirLock), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	lock, err := filelock.Wait(ctx, f)
	if err != nil {
		_ = f.Close()
	}
	return lock, err
}

// syncUp makes the names in dir durable, and those of the directories up to the
// store's own, unless it did so before.
func (s *dirStore) syncUp(dir string) error {
	for at := dir; ; at = filepath.Dir(at) {
		d, err := os.Open(at)
		if err != nil {
			return err
		}
		if err := errors.Join(s.sync(d), d.Close()); err != nil {
			err = fmt.Errorf("a directory of copies could not be synced, and is not used until the next start: %w", err)
			s.failed.CompareAndSwap(nil, &err)
			return err
		}
		_, known := s.synced.Load(dir)
		if known || at == s.dir || !strings.HasPrefix(at, s.dir) {
			s.synced.Store(dir, true)
			return nil
		}
	}
}

func (s *dirStore) err() error {
	if err := s.failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (s *dirStore) Get(ctx context.Context, name string) ([]byte, Version, error) {
	if err := errors.Join(checkName(name), ctx.Err(), s.err()); err != nil {
		return nil, "", err
	}
	f, err := os.Open(s.path(name))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, "", fmt.Errorf("%w: %s", ErrNotFound, name)
	}
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, "", err
	}
	if st.IsDir() {
		return nil, "", fmt.Errorf("%w: %s", ErrNotFound, name)
	}
	if st.Size() > MaxBytes {
		return nil, "", fmt.Errorf("%w: %s has %d bytes, allowed are %d", ErrTooLarge, name, st.Size(), MaxBytes)
	}
	b, err := readBody(f, st.Size())
	if err != nil {
		return nil, "", err
	}
	return b, versionOf(b), nil
}

// hashedBytes is the size up to which the version of a body is its SHA-256. For a larger body, computing that takes longer
// than writing it, and equal 64-bit checksums of different bodies of one length do not happen by chance.
const hashedBytes = 64 << 10

func versionOf(body []byte) Version {
	if len(body) > hashedBytes {
		return Version(fmt.Sprintf("%d-%016x", len(body), crc64nvme.Checksum(body)))
	}
	sum := sha256.Sum256(body)
	return Version(hex.EncodeToString(sum[:16]))
}

// List walks over everything: a directory has no order that would let it stop early.
func (s *dirStore) List(ctx context.Context, prefix, after string) ([]Info, error) {
	var infos []Info
	top := s.dir
	if i := strings.LastIndexByte(prefix, '/'); i > 0 && checkName(prefix[:i]) == nil {
		top = s.path(prefix[:i])
	}
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // deleted meanwhile, or never made
		}
		if err != nil {
			return err
		}
		if d.IsDir() || d.Name()[0] == '.' {
			return ctx.Err()
		}
		rel, err := filepath.Rel(s.dir, p)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(rel)
		if !strings.HasPrefix(name, prefix) || name <= after {
			return nil
		}
		st, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		infos = append(infos, Info{name, st.Size(), st.ModTime()})
		return nil
	})
	if err = errors.Join(err, ctx.Err()); err != nil {
		return nil, err
	}
	slices.SortFunc(infos, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	return infos[:min(len(infos), MaxList)], nil
}

func (s *dirStore) Delete(ctx context.Context, name string) error {
	if err := errors.Join(checkName(name), ctx.Err()); err != nil {
		return err
	}
	if err := os.Remove(s.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
