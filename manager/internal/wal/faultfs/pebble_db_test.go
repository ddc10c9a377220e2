package faultfs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
)

const stateDir = "d/state"

// fatalLogger panics where Pebble's own logger ends the process.
type fatalLogger struct{}

func (fatalLogger) Infof(string, ...any)           {}
func (fatalLogger) Errorf(string, ...any)          {}
func (fatalLogger) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }

func options(disk *FS) *pebble.Options {
	return &pebble.Options{
		FS:                    disk.Pebble(),
		DisableWAL:            true,
		FormatMajorVersion:    pebble.FormatNewest,
		L0CompactionThreshold: 2, // compactions of its own after few tables
		CacheSize:             1, // each read is one of the disk
		Logger:                fatalLogger{},
	}
}

func openDB(disk *FS) (*pebble.DB, error) { return pebble.Open(stateDir, options(disk)) }

// change is what the n-th ingested table does to contents: it sets some keys and deletes one.
func change(n int, contents map[string]string) {
	contents["last"] = fmt.Sprint(n)
	for i := range 5 {
		contents[fmt.Sprintf("key %d", (n*3+i)%17)] = fmt.Sprintf("%d %s", n, strings.Repeat("x", 100))
	}
	delete(contents, deletedBy(n))
}

func deletedBy(n int) string { return fmt.Sprintf("key %d", (n*3+9)%17) }

// ingest writes the n-th table and adds it to the database.
func ingest(disk *FS, db *pebble.DB, n int) error {
	set := make(map[string]string)
	change(n, set)
	deleted := deletedBy(n)
	keys := append(slices.Collect(maps.Keys(set)), deleted)
	slices.Sort(keys)

	p := disk.Pebble()
	name := fmt.Sprintf("%s/ingest-%d", stateDir, n)
	f, err := p.Create(name, unspecified)
	if err != nil {
		return err
	}
	w := sstable.NewWriter(objstorageprovider.NewFileWritable(f), sstable.WriterOptions{TableFormat: db.TableFormat()})
	for _, key := range keys {
		if key == deleted {
			err = w.Delete([]byte(key))
		} else {
			err = w.Set([]byte(key), []byte(set[key]))
		}
		if err != nil {
			return errors.Join(err, w.Close())
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return db.Ingest(context.Background(), []string{name})
}

// read returns all of the database.
func read(db *pebble.DB) (map[string]string, error) {
	it, err := db.NewIter(nil)
	if err != nil {
		return nil, err
	}
	got := make(map[string]string)
	for it.First(); it.Valid(); it.Next() {
		got[string(it.Key())] = string(it.Value())
	}
	return got, errors.Join(it.Error(), it.Close())
}

// A database that lives on the disk has a prefix of the ingests after a crash at any operation, with all that returned
// before.
func TestCrashLeavesAPrefixOfTheIngests(t *testing.T) {
	const ingests = 12
	type image struct {
		op       Op
		how      string
		disk     *FS
		returned int
	}
	rnd := rand.New(rand.NewPCG(1, 3))
	var images []image
	returned := 0
	seen := make(map[string]bool)
	disk := &FS{}
	var mu sync.Mutex // the database works on several goroutines
	disk.SetHook(func(op Op) error {
		mu.Lock()
		defer mu.Unlock()
		seen[op.Kind] = true
		if !op.Changes() {
			return nil
		}
		images = append(images,
			image{op, "nothing of the rest", disk.Crash(), returned},
			image{op, "some of the rest", disk.CrashRandomly(rnd), returned},
			image{op, "the first bytes of the rest", disk.CrashTorn(rnd.Int64N(4096)), returned})
		return nil
	})
	db, err := openDB(disk)
	if err != nil {
		t.Fatal(err)
	}
	for n := range ingests {
		if err := ingest(disk, db, n+1); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		returned = n + 1
		mu.Unlock()
		if n%5 == 4 {
			if err := db.Compact(context.Background(), []byte("a"), []byte("z"), false); err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			if db, err = openDB(disk); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{Create, Write, Sync, SyncDir, Link, Remove, Read} {
		if !seen[kind] {
			t.Errorf("no operation was a %s", kind)
		}
	}
	after := make(map[int]int)
	for _, i := range images {
		n, err := ingestsIn(i.disk)
		if err != nil || n < i.returned || n > ingests {
			t.Fatalf("crash before %+v with %s: %d of %d ingests are left, %v", i.op, i.how, n, i.returned, err)
		}
		after[n-i.returned]++
	}
	if after[0] == 0 || after[1] == 0 || after[2] != 0 {
		t.Errorf("the ingests that were left and had not returned are %v", after)
	}
}

// ingestsIn opens the database and returns how many ingests its contents are of. The database must take one more.
func ingestsIn(disk *FS) (int, error) {
	db, err := openDB(disk)
	if err != nil {
		return 0, err
	}
	got, err := read(db)
	if err != nil {
		return 0, errors.Join(err, db.Close())
	}
	n := 0
	if got["last"] != "" {
		if _, err := fmt.Sscan(got["last"], &n); err != nil {
			return 0, errors.Join(err, db.Close())
		}
	}
	want := make(map[string]string)
	for i := range n {
		change(i+1, want)
	}
	if !maps.Equal(got, want) {
		err = fmt.Errorf("after %d ingests the contents are %v, not %v", n, got, want)
	}
	err = errors.Join(err, ingest(disk, db, n+1))
	if got, e := read(db); e != nil || got["last"] != fmt.Sprint(n+1) {
		err = errors.Join(err, e, fmt.Errorf("after one more ingest the last one is %q", got["last"]))
	}
	return n, errors.Join(err, db.Close())
}

// A byte that changed on the disk is an error of the read, also when the file was open.
func TestDamageIsAnErrorOfTheRead(t *testing.T) {
	disk := &FS{}
	o := options(disk)
	o.DisableAutomaticCompactions = true
	// Without a listener Pebble ends the process.
	o.EventListener = &pebble.EventListener{DataCorruption: func(pebble.DataCorruptionInfo) {}}
	db, err := pebble.Open(stateDir, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := ingest(disk, db, 1); err != nil {
		t.Fatal(err)
	}
	for _, name := range disk.Names() {
		if strings.HasSuffix(name, ".sst") {
			disk.Flip(name, 20, 1)
		}
	}
	if _, err := read(db); !pebble.IsCorruptionError(err) {
		t.Errorf("with a flipped bit: %v", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}
