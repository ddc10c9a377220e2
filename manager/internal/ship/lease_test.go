package ship_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/ship"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// forkOf copies a data directory, which then goes its own way as another holder of leases.
func forkOf(t *testing.T, dir string) string {
	t.Helper()
	fork := t.TempDir()
	copyDir(t, dir, fork)
	if err := os.Remove(filepath.Join(fork, "holder")); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return fork
}

// mustHoldFork opens a restored directory, and checks that its records are those that both forks have, up to common, and then
// those of one fork only, which it returns.
func mustHoldFork(t *testing.T, dir string, common uint64, forks ...string) (fork string, last uint64) {
	t.Helper()
	check := func(seq uint64, b []byte) error {
		if last++; seq != last {
			return fmt.Errorf("record %d follows %d", seq, last-1)
		}
		if seq <= common {
			if string(b) != string(body("", seq)) {
				return fmt.Errorf("record %d is %q", seq, b)
			}
			return nil
		}
		for _, f := range forks {
			if string(b) == string(body(f, seq)) && (fork == "" || fork == f) {
				fork = f
				return nil
			}
		}
		return fmt.Errorf("record %d is %q, after records of fork %q", seq, b, fork)
	}
	l, err := wal.Open(t.Context(), dir, wal.Options{SegmentBytes: segmentBytes, Replay: check, Restore: func(b []byte) error { return check(last+1, b) }})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return fork, last
}

// TestLostLeaseUsesNoTermAgain: whatever is lost together with the lease, the next manager takes a term that was never used, at
// its first try.
func TestLostLeaseUsesNoTermAgain(t *testing.T) {
	t.Parallel()
	for _, lost := range [][]string{{}, {"ledger/manifest"}} {
		for _, fork := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s fork=%v", strings.Join(lost, " "), fork), func(t *testing.T) {
				t.Parallel()
				_, dest := newDest(t)
				dir := t.TempDir()
				var last uint64
				for range 3 {
					l := startLedger(t, dir, dest, nil)
					last = l.append(5)
					l.shipped()
					l.stop()
				}
				for _, name := range append(lost, "lease") {
					spoil(t, dest, name, true)
				}
				rounds := ""
				if fork {
					dir, rounds = forkOf(t, dir), "fork"
				}
				l := startLedger(t, dir, dest, nil)
				l.rounds = rounds
				l.append(5)
				st := l.status(dest)
				if st.Lease.Term != 4 || l.journal.has("lost the shipping lease") {
					t.Errorf("term %d", st.Lease.Term)
				}
				l.stop()
				restored, _, err := restoreAndVerify(t, dest, time.Time{})
				if err != nil {
					t.Fatal(err)
				}
				if _, got := mustHoldFork(t, restored, last, rounds); got != last+5 {
					t.Errorf("%d records are restored, want %d", got, last+5)
				}
			})
		}
	}
}

// TestRubbishLeaseUsesNoTermAgain: JSON that is no lease is damage.
func TestRubbishLeaseUsesNoTermAgain(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	dir := t.TempDir()
	l := startLedger(t, dir, dest, nil)
	l.append(5)
	l.stop()
	l = startLedger(t, dir, dest, func(o *ship.Options) { o.LeaseTTL = 300 * time.Millisecond })
	l.append(5)
	l.shipped()
	err := object.ErrChanged
	for errors.Is(err, object.ErrChanged) { // it is renewed meanwhile
		_, v, getErr := dest.Get(t.Context(), "lease")
		if getErr != nil {
			t.Fatal(getErr)
		}
		_, err = dest.Replace(t.Context(), "lease", []byte("{}\n"), v)
	}
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lease is taken again", func() bool {
		st, err := ship.ReadStatus(t.Context(), dest)
		return err == nil && st.Lease != nil && st.Lease.Term > 2
	})
	last := l.append(5)
	l.shipped()
	l.stop()
	if l.journal.has("term=1\n") {
		t.Error("term 1 was used again")
	}
	mustRestore(t, dest, "", last)
}

// TestLeftoversAreNoPartOfATail: the lease and the manifest are lost, listings are stale, and runs of term 1 are left. A fork of the
// log that takes term 1 again is not mixed up with them, neither before it finds that their names are taken, nor after.
func TestLeftoversAreNoPartOfATail(t *testing.T) {
	t.Parallel()
	srv, dest := newDest(t)
	srv.StaleLists.Store(true)
	dir := t.TempDir()
	l := startLedger(t, dir, nil, nil)
	common := l.append(5)
	l.crash()
	forked := forkOf(t, dir)
	l = startLedger(t, dir, dest, nil)
	l.rounds = "first"
	for range 5 {
		l.append(3)
		l.shipped()
	}
	l.stop()
	for _, name := range []string{"lease", "ledger/manifest", "ledger/0000000001/h"} {
		spoil(t, dest, name, true)
	}
	l = startLedger(t, forked, nil, nil)
	l.rounds = "fork"
	l.append(4)
	l.crash()
	var open atomic.Bool
	l = startLedger(t, forked, &refusing{dest, func(name string) bool { return strings.Contains(name, "/t") && !open.Load() }}, nil)
	l.rounds = "fork"
	eventually(t, "it begins", func() bool { _, _, err := dest.Get(t.Context(), "ledger/manifest"); return err == nil })
	if restored, _, err := restore(t, dest, time.Time{}); err == nil {
		if fork, last := mustHoldFork(t, restored, common, "first", "fork"); fork != "fork" {
			t.Errorf("restored %d records of fork %q", last, fork)
		}
	} else if !errors.Is(err, ship.ErrNothing) {
		t.Error(err)
	}
	open.Store(true)
	last := l.append(4)
	l.shipped()
	l.stop()
	restored, _, err := restore(t, dest, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if fork, got := mustHoldFork(t, restored, common, "first", "fork"); fork != "fork" || got != last {
		t.Errorf("restored %d records of fork %q, want %d", got, fork, last)
	}
}

// holding is a store that holds up calls once: those that due chooses wait until open is closed.
type holding struct {
	object.Store
	due   func(call, name string) bool
	held  chan struct{} // closed when the first call waits
	open  chan struct{}
	first atomic.Bool
}

func newHolding(s object.Store, due func(call, name string) bool) *holding {
	return &holding{Store: s, due: due, held: make(chan struct{}), open: make(chan struct{})}
}

func (s *holding) wait(ctx context.Context, call, name string) {
	if !s.due(call, name) {
		return
	}
	if s.first.CompareAndSwap(false, true) {
		close(s.held)
	}
	select {
	case <-s.open:
	case <-ctx.Done():
	}
}

func (s *holding) Get(ctx context.Context, name string) ([]byte, object.Version, error) {
	s.wait(ctx, "get", name)
	return s.Store.Get(ctx, name)
}

func (s *holding) List(ctx context.Context, prefix, after string) ([]object.Info, error) {
	s.wait(ctx, "list", prefix)
	return s.Store.List(ctx, prefix, after)
}

// released is a destination whose lease was released in a term.
func released(t *testing.T, term int) object.Store {
	t.Helper()
	_, dest := newDest(t)
	if _, err := dest.Create(t.Context(), "lease", fmt.Appendf(nil, `{"term":%d,"holder":"h","writer":"w","host":"x","ttl_ms":60000,"released":true}`+"\n", term)); err != nil {
		t.Fatal(err)
	}
	return dest
}

// wipe deletes all objects of a destination.
func wipe(t *testing.T, dest object.Store) {
	t.Helper()
	for _, name := range namesOf(t, dest, "") {
		if err := dest.Delete(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOldHolderReplacesNoNewerManifest: a manager has the lease and wrote nothing yet when the lease is deleted. Another one takes it, in
// a term that may be earlier. The first one does not replace its manifest.
func TestOldHolderReplacesNoNewerManifest(t *testing.T) {
	t.Parallel()
	dest := released(t, 7)
	away := newHolding(dest, func(call, name string) bool { return call == "get" && name == "ledger/manifest" })
	first := startLedger(t, t.TempDir(), away, nil)
	first.append(1)
	<-away.held
	wipe(t, dest)
	second := startLedger(t, t.TempDir(), dest, nil)
	second.rounds = "second"
	last := second.append(20)
	second.shipped()
	close(away.open)
	eventually(t, "the first is fenced", func() bool { return first.journal.has("lost the shipping lease") })
	if second.journal.has("lost the shipping lease") {
		t.Error("the second lost the lease")
	}
	mustRestore(t, dest, "second", last)
}

// TestOldHolderSweepsNothingOfANewer: a destination is emptied while a manager of a late term is about to sweep it. What another manager ships in
// an earlier term is not what the first one looks for.
func TestOldHolderSweepsNothingOfANewer(t *testing.T) {
	t.Parallel()
	dest := released(t, 7)
	away := newHolding(dest, func(call, name string) bool { return call == "list" && name == "ledger/" })
	first := startLedger(t, t.TempDir(), away, nil)
	first.append(5)
	<-away.held // the sweep of a start
	wipe(t, dest)
	second := startLedger(t, t.TempDir(), dest, nil)
	second.rounds = "second"
	last := second.append(20)
	second.shipped()
	close(away.open)
	eventually(t, "the first is fenced", func() bool { return first.journal.has("lost the shipping lease") })
	mustRestore(t, dest, "second", last)
}

// TestLeaseLostAgainAndAgain: two managers on copies of one directory want one destination, whose lease is deleted again and again. Every
// restore has records of one of them only, and in the end all of the one that is left.
func TestLeaseLostAgainAndAgain(t *testing.T) {
	t.Parallel()
	srv, dest := newDest(t)
	dir := t.TempDir()
	l := startLedger(t, dir, nil, nil)
	common := l.append(5)
	l.crash()
	forks := []string{"first", "second"}
	managers := make([]*ledger, 2)
	for i, d := range []string{forkOf(t, dir), forkOf(t, dir)} {
		managers[i] = startLedger(t, d, srv.Open(t, "dest"), func(o *ship.Options) { o.LeaseTTL = 100 * time.Millisecond })
		managers[i].rounds = forks[i]
	}
	restores := 0
	const least = 10 // restores; a slow destination needs more rounds for them
	for i := 0; i < 60 || restores < least && i < 600; i++ {
		for _, m := range managers {
			m.append(3)
		}
		time.Sleep(rand.N(20 * time.Millisecond))
		gone := []string{"lease"}
		if i%10 == 5 { // a holder that does not lose its lease as well sees that only when it writes its manifest next
			gone = append(gone, "ledger/manifest")
		}
		for _, name := range gone {
			if err := dest.Delete(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		restored, _, err := restore(t, dest, time.Time{})
		if errors.Is(err, ship.ErrNothing) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		mustHoldFork(t, restored, common, forks...)
		restores++
	}
	if restores < least {
		t.Errorf("%d restores", restores)
	}
	managers[0].crash()
	last := managers[1].append(5)
	eventually(t, "the second has shipped all", func() bool {
		restored, _, err := restore(t, dest, time.Time{})
		if errors.Is(err, ship.ErrNothing) {
			return false // it did not see yet that the lease is gone
		}
		if err != nil {
			t.Fatal(err)
		}
		fork, got := mustHoldFork(t, restored, common, forks...)
		return fork == "second" && got == last
	})
	managers[1].stop()
}

// TestLostManifestIsWrittenAgain: a manifest is deleted while nothing is written to its log.
func TestLostManifestIsWrittenAgain(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	store := &often{Store: dest, resume: make(chan struct{})}
	l := startLedger(t, t.TempDir(), store, nil)
	last := l.append(20)
	l.shipped()
	store.created.Store(false)
	spoil(t, dest, "ledger/manifest", true)
	eventually(t, "there is a manifest", store.created.Load)
	if n := l.shipper.Shipped(); n > 0 {
		t.Errorf("the new manifest names no record yet, and %d count as shipped", n)
	}
	close(store.resume)
	l.shipped()
	mustRestore(t, dest, "", last)
	l.stop()
}

// often is a store whose manager often looks for its manifests. Each manifest that it creates after the first is answered only
// when resume is closed.
type often struct {
	object.Store
	first   sync.Once
	created atomic.Bool
	resume  chan struct{}
}

func (s *often) Create(ctx context.Context, name string, body []byte) (object.Version, error) {
	v, err := s.Store.Create(ctx, name, body)
	if name == "ledger/manifest" && err == nil {
		first := false
		s.first.Do(func() { first = true })
		if s.created.Store(true); !first {
			select {
			case <-s.resume:
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}
	}
	return v, err
}

// outrun is a store on which another manager takes the lease just before its first client does.
type outrun struct {
	object.Store
	once sync.Once
	by   func()
}

func (s *outrun) Create(ctx context.Context, name string, body []byte) (object.Version, error) {
	if name == "lease" {
		s.once.Do(s.by)
	}
	return s.Store.Create(ctx, name, body)
}

// TestOutrunManagerNamesTheHolder: a manager that finds no lease, and is not the first to take it, reports which one was.
func TestOutrunManagerNamesTheHolder(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	var last uint64
	second := startLedger(t, t.TempDir(), &outrun{Store: dest, by: func() {
		first := startLedger(t, t.TempDir(), dest, nil)
		last = first.append(5)
		first.shipped()
	}}, nil)
	second.rounds = "second"
	second.append(1)
	eventually(t, "the second says that it has no lease", func() bool { return second.journal.has("another manager holds the shipping lease") })
	if second.journal.has("term=0") || !second.journal.has("term=1") {
		t.Error("it names no holder")
	}
	mustRestore(t, dest, "", last)
}

// unanswered is a store that carries out a renewal of the lease and does not answer it.
type unanswered struct {
	object.Store
	lose  atomic.Bool
	asked chan struct{}
}

func (s *unanswered) Replace(ctx context.Context, name string, body []byte, old object.Version) (object.Version, error) {
	v, err := s.Store.Replace(ctx, name, body, old)
	if name == "lease" && err == nil && s.lose.CompareAndSwap(true, false) {
		close(s.asked)
		<-ctx.Done()
		return "", ctx.Err()
	}
	return v, err
}

// A stop during a renewal whose answer does not come releases the lease anyway.
func TestLeaseIsReleasedAfterALostRenewal(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	store := &unanswered{Store: dest, asked: make(chan struct{})}
	l := startLedger(t, t.TempDir(), store, func(o *ship.Options) { o.LeaseTTL = 2 * time.Second })
	l.append(1)
	l.shipped()
	store.lose.Store(true)
	<-store.asked
	l.stop()
	if st, err := ship.ReadStatus(t.Context(), dest); err != nil || st.Lease == nil || !st.Lease.Released {
		t.Errorf("the lease is not released: %+v, %v", st, err)
	}
}
