package ship_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/ship"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// spoil deletes an object, or flips a bit of it. mend undoes that.
func spoil(t *testing.T, dest object.Store, name string, remove bool) (mend func()) {
	t.Helper()
	var b []byte
	err := object.ErrChanged
	for errors.Is(err, object.ErrChanged) { // a lease is renewed meanwhile
		var v object.Version
		b, v, err = dest.Get(t.Context(), name)
		if err == nil && remove {
			err = dest.Delete(t.Context(), name)
		} else if err == nil {
			bad := slices.Clone(b)
			bad[0] ^= 0x10
			_, err = dest.Replace(t.Context(), name, bad, v)
		}
	}
	if err != nil {
		t.Fatal(name, err)
	}
	return func() {
		t.Helper()
		err := dest.Delete(t.Context(), name)
		if err == nil {
			_, err = dest.Create(t.Context(), name, b)
		}
		if err != nil {
			t.Fatal(name, err)
		}
	}
}

// namesOf lists the objects whose names begin with prefix.
func namesOf(t *testing.T, dest object.Store, prefix string) (names []string) {
	t.Helper()
	if err := object.All(t.Context(), dest, prefix, func(o object.Info) error {
		names = append(names, o.Name)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return names
}

// prefixesOf returns the prefix of each named log.
func prefixesOf(st *ship.Status) map[string]string {
	prefixes := make(map[string]string)
	for _, l := range st.Logs {
		prefixes[l.Name] = l.Prefix
	}
	return prefixes
}

// TestAllDamageIsReported: one restore names all damaged and missing objects of the ledger and of each log, and leaves
// nothing but an empty directory that keeps managers away.
func TestAllDamageIsReported(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	m := startManager(t, t.TempDir(), dest, nil)
	for _, name := range []string{"good", "one", "two", "three"} {
		m.make(name)
	}
	for range 5 {
		m.append(5)
		for _, name := range []string{"good", "one", "two", "three"} {
			m.write(name, 20)
		}
		m.allShipped(dest, "good", "one", "three", "two")
	}
	prefixes := prefixesOf(m.allShipped(dest, "good", "one", "three", "two"))
	m.stop()
	tail := func(log string) []string { return namesOf(t, dest, log+"/0000000001/t") }
	ledger, one, two := tail("ledger"), tail(prefixes["one"]), tail(prefixes["two"])
	if len(ledger) < 4 || len(one) < 3 || len(two) < 3 {
		t.Fatal(ledger, one, two)
	}
	damaged := map[string]bool{
		ledger[0]: false, ledger[1]: true, ledger[len(ledger)-1]: true, // the head counts the last one
		one[len(one)-2]: true, one[len(one)-1]: false, // a snapshot makes the first ones unnecessary
		namesOf(t, dest, prefixes["two"]+"/0000000001/h")[0]: false, two[len(two)-1]: false,
		prefixes["three"] + "/manifest": false,
	}
	var mends []func()
	for name, remove := range damaged {
		mends = append(mends, spoil(t, dest, name, remove))
	}
	dir, _, err := restoreAll(t, dest, time.Time{})
	if err == nil {
		t.Fatal("damaged objects were restored")
	}
	for name := range damaged {
		if n := strings.Count(err.Error(), name+":"); n != 1 {
			t.Errorf("%s is named %d times: %v", name, n, err)
		}
	}
	if n := strings.Count(err.Error(), "object l"); n != len(damaged) {
		t.Errorf("others are named as well: %v", err)
	}
	if _, verified := ship.Verify(t.Context(), ship.RestoreOptions{Store: dest}); verified == nil || verified.Error() != err.Error() {
		t.Errorf("verified: %v; restored: %v", verified, err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != ship.PartialDir {
		t.Errorf("it left %v, %v", left, err)
	}
	if left, err = os.ReadDir(filepath.Join(dir, ship.PartialDir)); err != nil || len(left) != 0 {
		t.Errorf("it left %v, %v", left, err)
	}

	for _, mend := range mends {
		mend()
	}
	mustHaveLogs(t, dest, time.Time{}, map[string]uint64{"good": 100, "one": 100, "two": 100, "three": 100})
	_, restored, err := restoreAll(t, dest, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	verified, err := ship.Verify(t.Context(), ship.RestoreOptions{Store: dest})
	if err != nil {
		t.Fatal(err)
	}
	if verified.Took = restored.Took; !reflect.DeepEqual(verified, restored) {
		t.Errorf("verified: %+v\nrestored: %+v", verified, restored)
	}
}

// TestRecordsAreChecked: a record that a manager could not use fails a restore, and a verification.
func TestRecordsAreChecked(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	l := startLedger(t, t.TempDir(), dest, nil)
	l.append(10)
	l.shipped()
	l.snapshot()
	l.append(10)
	l.stop()
	for _, bad := range []uint64{3, 15} {
		asked := 0
		o := ship.RestoreOptions{Store: dest, Dir: filepath.Join(t.TempDir(), "new"), Check: func(e wal.Entry) error {
			if asked++; bytes.Equal(e.Body, body("", bad)) {
				return errors.New("it is of no use")
			}
			return nil
		}}
		_, restored := ship.Restore(t.Context(), o)
		byRestore := asked
		asked = 0
		_, verified := ship.Verify(t.Context(), o)
		for _, err := range []error{restored, verified} {
			if err == nil || !strings.Contains(err.Error(), "it is of no use") {
				t.Errorf("record %d: %v", bad, err)
			}
		}
		if asked == 0 || asked > byRestore {
			t.Errorf("record %d: asked about %d, by a restore about %d", bad, asked, byRestore)
		}
	}
}

// TestDamageKeepsManagersAway: a restore that finds damage before it writes anything leaves the directory that keeps managers
// away, too.
func TestDamageKeepsManagersAway(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	m := startManager(t, t.TempDir(), dest, nil)
	m.append(5)
	m.allShipped(dest)
	m.stop()
	for _, name := range []string{"catalog", "ledger/0000000001/h", "ledger/manifest"} {
		mend := spoil(t, dest, namesOf(t, dest, name)[0], name == "catalog")
		dir, _, err := restoreAll(t, dest, time.Time{})
		var damage *ship.DamageError
		if !errors.As(err, &damage) {
			t.Errorf("%s: %v", name, err)
		}
		if left, err := os.ReadDir(filepath.Join(dir, ship.PartialDir)); err != nil || len(left) != 0 {
			t.Errorf("%s: it left %v, %v", name, left, err)
		}
		if name != "catalog" {
			mend()
		}
	}
}

// TestStatusDespiteDamage: a status has all that can be read.
func TestStatusDespiteDamage(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	m := startManager(t, t.TempDir(), dest, nil)
	m.make("good")
	m.make("bad")
	m.write("good", 20)
	m.write("bad", 20)
	want := m.allShipped(dest, "bad", "good")
	manifest := prefixesOf(want)["bad"] + "/manifest"
	m.stop()
	mend := spoil(t, dest, "lease", false)
	bad := spoil(t, dest, manifest, true)
	st, err := ship.ReadStatus(t.Context(), dest, "")
	if st == nil {
		t.Fatal(err)
	}
	var damage *ship.DamageError
	if !errors.Is(err, ship.ErrNothing) || errors.As(err, &damage) || !strings.Contains(err.Error(), manifest) {
		t.Errorf("a log without a manifest: %v", err)
	}
	if st.Lease != nil || !strings.Contains(st.LeaseDamaged, "object lease: ") || st.Sequence != want.Sequence {
		t.Errorf("%+v, want sequence %d", st, want.Sequence)
	}
	for _, l := range st.Logs {
		if (l.Damaged != "") != (l.Name == "bad") || (l.Sequence == 0) != (l.Name == "bad") {
			t.Errorf("%+v", l)
		}
	}
	bad()
	if st, err = ship.ReadStatus(t.Context(), dest, ""); err != nil || st.LeaseDamaged == "" || st.Sequence != want.Sequence || len(st.Logs) != 2 {
		t.Errorf("%+v, %v", st, err)
	}
	mend()
	if st, err = ship.ReadStatus(t.Context(), dest, ""); err != nil || st.LeaseDamaged != "" || st.Lease.Term != 1 || !st.Lease.Released {
		t.Errorf("%+v, %v", st, err)
	}
}

// TestLostLease: the lease is deleted, or overwritten with rubbish, while a manager ships. It takes the lease again in a term
// that was never used, and everything can be restored.
func TestLostLease(t *testing.T) {
	t.Parallel()
	for _, remove := range []bool{true, false} {
		_, dest := newDest(t)
		m := startManager(t, t.TempDir(), dest, func(o *ship.Options) { o.LeaseTTL = 300 * time.Millisecond })
		m.make("one")
		ship := func(n int) {
			t.Helper()
			for range n {
				m.append(5)
				m.write("one", 5)
				m.allShipped(dest, "one")
			}
		}
		ship(3)
		for range 2 {
			before := m.allShipped(dest, "one").Lease.Term
			spoil(t, dest, "lease", remove)
			eventually(t, "the lease is taken again", func() bool {
				st := m.isShipped(dest, "one")
				return st != nil && st.Lease != nil && st.Lease.Term > before
			})
			ship(2)
		}
		last := m.append(1)
		m.stop()
		mustHaveLogs(t, dest, time.Time{}, map[string]uint64{"one": 35})
		mustRestore(t, dest, "", last)
		if m.journal.has("exists with other content") || m.journal.has("damaged") {
			t.Error("names were used twice")
		}
	}
}
