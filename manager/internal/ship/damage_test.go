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

// TestAllDamageIsReported: one restore names all damaged and missing objects, and leaves
// nothing but an empty directory that keeps managers away.
func TestAllDamageIsReported(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	l := startLedger(t, t.TempDir(), dest, nil)
	var last uint64
	for range 6 {
		last = l.append(5)
		l.shipped()
	}
	l.snapshot()
	eventually(t, "a snapshot is shipped", func() bool { return len(partsOf(t, dest)) == 1 })
	for range 6 {
		last = l.append(5)
		l.shipped()
	}
	l.stop()
	tail := namesOf(t, dest, "ledger/0000000001/t")
	n := len(tail)
	if n < 10 {
		t.Fatal(tail)
	}
	damaged := map[string]bool{
		partsOf(t, dest)[0]: false, tail[n-5]: false, tail[n-4]: true, tail[n-2]: false,
		tail[n-1]: true, // the head counts the last one
	}
	var mends []func()
	for name, remove := range damaged {
		mends = append(mends, spoil(t, dest, name, remove))
	}
	dir, _, err := restoreAndVerify(t, dest, time.Time{})
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
	dir, restored, err := restore(t, dest, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	mustHold(t, dir, "", last)
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
	l := startLedger(t, t.TempDir(), dest, nil)
	l.append(5)
	l.shipped()
	l.stop()
	for _, name := range []string{"ledger/0000000001/h", "ledger/manifest"} {
		mend := spoil(t, dest, name, false)
		dir, _, err := restoreAndVerify(t, dest, time.Time{})
		var damage *ship.DamageError
		if !errors.As(err, &damage) {
			t.Errorf("%s: %v", name, err)
		}
		if left, err := os.ReadDir(filepath.Join(dir, ship.PartialDir)); err != nil || len(left) != 0 {
			t.Errorf("%s: it left %v, %v", name, left, err)
		}
		mend()
	}
}

// TestStatusDespiteDamage: a status without the lease has all else, and a damaged head or manifest is an error.
func TestStatusDespiteDamage(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	l := startLedger(t, t.TempDir(), dest, nil)
	l.append(5)
	want := l.status(dest)
	l.stop()
	mend := spoil(t, dest, "lease", false)
	st, err := ship.ReadStatus(t.Context(), dest)
	if err != nil || st.Lease != nil || !strings.Contains(st.LeaseDamaged, "object lease: ") || st.Sequence != want.Sequence {
		t.Errorf("%+v, %v, want sequence %d", st, err, want.Sequence)
	}
	for _, name := range []string{"ledger/0000000001/h", "ledger/manifest"} {
		mend := spoil(t, dest, name, false)
		var damage *ship.DamageError
		if _, err := ship.ReadStatus(t.Context(), dest); !errors.As(err, &damage) || damage.Object != name {
			t.Errorf("%s: %v", name, err)
		}
		mend()
	}
	mend()
	if st, err = ship.ReadStatus(t.Context(), dest); err != nil || st.LeaseDamaged != "" || st.Lease.Term != 1 || !st.Lease.Released {
		t.Errorf("%+v, %v", st, err)
	}
}

// TestLostLease: the lease is deleted, or overwritten with rubbish, while a manager ships. It takes the lease again in a term
// that was never used, and everything can be restored.
func TestLostLease(t *testing.T) {
	t.Parallel()
	for _, remove := range []bool{true, false} {
		_, dest := newDest(t)
		l := startLedger(t, t.TempDir(), dest, func(o *ship.Options) { o.LeaseTTL = 300 * time.Millisecond })
		add := func(n int) {
			t.Helper()
			for range n {
				l.append(5)
				l.shipped()
			}
		}
		add(3)
		for range 2 {
			before := l.status(dest).Lease.Term
			spoil(t, dest, "lease", remove)
			eventually(t, "the lease is taken again", func() bool {
				st, err := ship.ReadStatus(t.Context(), dest)
				return err == nil && st.Lease != nil && st.Lease.Term > before
			})
			add(2)
		}
		last := l.append(1)
		l.stop()
		mustRestore(t, dest, "", last)
		if l.journal.has("exists with other content") || l.journal.has("damaged") {
			t.Error("names were used twice")
		}
	}
}
