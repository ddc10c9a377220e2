package walogs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// The faults that two predecessors of this design had, by name.

// TestCompletionOutOfOrderAroundSnapshotAndCrash: appends end in another order than they began in,
// snapshots are taken meanwhile, and the machine loses power at any moment. What was
// acknowledged is there once, and its id gives the same entry.
func TestCompletionOutOfOrderAroundSnapshotAndCrash(t *testing.T) {
	for seed := range uint64(12) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		r := newRig(t, logs.Change{})
		var mu sync.Mutex
		acknowledged := make(map[string]uint64)
		for round := range 3 {
			var wg sync.WaitGroup
			for c := range 6 {
				wg.Add(1)
				go func() {
					defer wg.Done()
					for i := range 20 {
						var items []logs.Item
						for k := range 1 + i%3 {
							id := fmt.Sprintf("%d-%d-%d-%d", round, c, i, k)
							items = append(items, entry(id, id+strings.Repeat("x", i*13)))
						}
						out, err := r.Append(t.Context(), "log", items, false)
						if err != nil {
							t.Errorf("Append: %v", err)
							return
						}
						mu.Lock()
						for _, o := range out {
							acknowledged[o.ID] = o.Number
						}
						mu.Unlock()
					}
				}()
			}
			var crashed *faultfs.FS
			var at map[string]uint64
			wg.Add(1)
			go func() {
				defer wg.Done()
				for range rnd.IntN(3) {
					_ = r.log().snapshot(t.Context())
				}
				mu.Lock() // what is acknowledged by now must survive
				at = make(map[string]uint64, len(acknowledged))
				for id, n := range acknowledged {
					at[id] = n
				}
				crashed = r.fs.CrashRandomly(rand.New(rand.NewPCG(seed, uint64(round))))
				mu.Unlock()
				_ = r.log().snapshot(t.Context())
			}()
			wg.Wait()
			r.crashTo(crashed)
			seen := make(map[string]uint64)
			for _, e := range r.all() {
				if seen[e.ID] != 0 {
					t.Fatalf("seed %d: id %s is entry %d and %d", seed, e.ID, seen[e.ID], e.Number)
				}
				seen[e.ID] = e.Number
			}
			for id, n := range at {
				if seen[id] != n {
					t.Fatalf("seed %d: id %s was acknowledged as entry %d, and is %d", seed, id, n, seen[id])
				}
			}
			for id, n := range seen {
				if e, err := r.ByID(t.Context(), "log", id); err != nil || e.Number != n {
					t.Fatalf("seed %d: by-id of %s gives %d, %v, it is entry %d", seed, id, e.Number, err, n)
				}
			}
			acknowledged = seen
		}
		r.close()
	}
}

// TestReadErrorInRecoveryRefusesToStart: a file that cannot be read is no shorter log.
func TestReadErrorInRecoveryRefusesToStart(t *testing.T) {
	r := newRig(t, logs.Change{})
	for i := range 300 {
		r.put(entry(fmt.Sprint("a", i), strings.Repeat("p", 200)))
	}
	r.snapshot()
	for i := range 200 {
		r.put(entry(fmt.Sprint("b", i), strings.Repeat("p", 200)))
	}
	r.close()
	broken := errors.New("input/output error")
	for n := range 100 {
		reads := 0
		r.fs.SetHook(func(op faultfs.Op) error {
			if op.Kind != faultfs.Read {
				return nil
			}
			if reads++; reads == n+1 {
				return broken
			}
			return nil
		})
		err := r.tryOpen()
		r.fs.SetHook(nil)
		if reads <= n {
			if n < 3 {
				t.Fatalf("a start has %d reads", reads)
			}
			break
		}
		if !errors.Is(err, broken) || !strings.Contains(err.Error(), `"log"`) {
			t.Fatalf("a start whose read %d fails: %v", n, err)
		}
	}
	r.close()
	r.open()
	r.expect("1 again, 500 again", entry("a0", strings.Repeat("p", 200)), entry("b199", strings.Repeat("p", 200)))
}

// TestOrderAndAgeAfterRecovery: ids expire after a restart as they would have without it.
func TestOrderAndAgeAfterRecovery(t *testing.T) {
	for _, how := range []string{"replay", "snapshot", "both"} {
		r := newRig(t, logs.Change{})
		for i := range 5 {
			r.put(entry(fmt.Sprint(i), ""))
			r.clock.advance(time.Minute)
			if how == "both" && i == 2 {
				r.snapshot()
			}
		}
		r.clock.advance(-time.Minute) // the last one is new
		if how == "snapshot" {
			r.snapshot()
		}
		r.restart() // 0 is 4 minutes old
		r.expect("1 again, 5 again", entry("0", ""), entry("4", ""))
		r.clock.advance(time.Minute)
		r.expect("6, 2 again", entry("0", ""), entry("1", ""))
		r.clock.advance(2 * time.Minute)
		r.expect("4 again, 7, 6 again", entry("3", ""), entry("2", ""), entry("0", ""))
		r.close()
	}
}

// TestExpiredIDDoesNotAnswer: what is too old gives no entry, by whatever call.
func TestExpiredIDDoesNotAnswer(t *testing.T) {
	r := newRig(t, logs.Change{})
	r.expect("1", entry("a", ""))
	r.clock.advance(5*time.Minute - 1)
	if e, err := r.ByID(t.Context(), "log", "a"); err != nil || e.Number != 1 {
		t.Errorf("by-id gives %d, %v before the id expires", e.Number, err)
	}
	r.clock.advance(1)
	if _, err := r.ByID(t.Context(), "log", "a"); code(err) != "not-found" {
		t.Errorf("by-id of an expired id: %v", err)
	}
	r.expect("2, 2 again", entry("a", "other"), entry("a", "other"))
}

// TestAppendErrorWithTheRecordOnDisk: the sync fails, and nobody knows whether the record is there.
// Nothing is answered but that, whatever is asked, until a restart has looked.
func TestAppendErrorWithTheRecordOnDisk(t *testing.T) {
	for _, onDisk := range []bool{true, false} {
		r := newRig(t, logs.Change{})
		r.expect("1", entry("a", ""))
		var mu sync.Mutex // the next segment may be prepared meanwhile
		var after *faultfs.FS
		r.fs.SetHook(func(op faultfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if op.Kind != faultfs.Sync || after != nil {
				return nil
			}
			if after = r.fs.Crash(); onDisk {
				after = r.fs.Clone() // all that was written reached the disk
			}
			return errors.New("input/output error")
		})
		for range 3 {
			r.expect("unavailable", entry("b", ""))
		}
		r.fs.SetHook(nil)
		r.expect("unavailable", entry("b", ""))
		if _, err := r.ByID(t.Context(), "log", "b"); code(err) != "unavailable" {
			t.Errorf("by-id of what is not known: %v", err)
		}
		if got := r.ids(); got != "a" {
			t.Errorf("a failed log has the entries %s", got)
		}
		if info, err := r.Get(t.Context(), "log"); err != nil || info.Failed == "" {
			t.Errorf("the log does not say that it failed: %+v, %v", info, err)
		}
		r.crashTo(after)
		if onDisk {
			r.expect("2 again, 3", entry("b", ""), entry("c", ""))
		} else {
			r.expect("2, 3", entry("b", ""), entry("c", ""))
		}
		r.close()
	}
}

// TestSameIDOtherPayload is refused, before and after a restart, and writes nothing.
func TestSameIDOtherPayload(t *testing.T) {
	r := newRig(t, logs.Change{})
	r.expect("1, payload-mismatch", entry("a", "1"), entry("a", "2"))
	r.restart()
	r.expect("payload-mismatch, 1 again, 2", entry("a", "2"), entry("a", "1"), entry("b", ""))
	r.snapshot()
	r.crash()
	r.expect("payload-mismatch, 1 again", entry("a", ""), entry("a", "1"))
	if got := r.ids(); got != "a b" {
		t.Errorf("the log holds %s", got)
	}
}

// TestTwoWritersFencedByEpoch: the newer epoch counts, not the clock, over restarts too.
func TestTwoWritersFencedByEpoch(t *testing.T) {
	r := newRig(t, logs.Change{})
	open := func(writer string, want uint64) {
		t.Helper()
		if epoch, err := r.OpenWriter(t.Context(), "log", writer); err != nil || epoch != want {
			t.Fatalf("OpenWriter: %d, %v, want %d", epoch, err, want)
		}
	}
	by := func(writer string, epoch uint64, id string) logs.Item {
		return logs.Item{ID: id, Writer: writer, Epoch: epoch}
	}
	open("w", 1)
	r.expect("1, fenced, fenced", by("w", 1, "a"), by("w", 2, "b"), by("other", 1, "b"))
	open("w", 2)
	open("other", 1)
	for _, how := range []func(){func() {}, r.restart, r.snapshot, r.crash} {
		how()
		r.expect("fenced, fenced", by("w", 1, "b"), by("w", 1, "a"))
		r.put(by("w", 2, "new"), by("other", 1, "more"))
	}
	open("w", 3)
	r.expect("fenced", by("w", 2, "late"))
	if got := r.ids(); got != "a new more" {
		t.Errorf("the log holds %s", got)
	}
}

// TestFailedSave: a snapshot that cannot be written costs nothing but time at the next start.
func TestFailedSave(t *testing.T) {
	for n := range 12 {
		r := newRig(t, logs.Change{})
		for i := range 50 {
			r.put(entry(fmt.Sprint(i), ""))
		}
		r.snapshot()
		r.put(entry("50", ""))
		ops := 0
		r.fs.SetHook(func(op faultfs.Op) error {
			if !strings.Contains(op.Path, ".snap") {
				return nil
			}
			if ops++; ops == n+1 {
				return errors.New("no luck")
			}
			return nil
		})
		err := r.log().snapshot(t.Context())
		r.fs.SetHook(nil)
		if err == nil && ops > n && n < 3 {
			t.Errorf("the snapshot whose operation %d fails succeeds", n)
		}
		r.expect("51 again, 52", entry("50", ""), entry("51", ""))
		r.crash()
		r.expect("1 again, 51 again, 52 again", entry("0", ""), entry("50", ""), entry("51", ""))
		r.snapshot()
		r.crash()
		r.expect("1 again, 51 again, 53", entry("0", ""), entry("50", ""), entry("52", ""))
		r.close()
	}
}

// TestWaitersAndTheirContexts: a duplicate of an append that is not durable waits for it, no longer
// than its own context lasts. An append whose caller left keeps its id.
func TestWaitersAndTheirContexts(t *testing.T) {
	r := newRig(t, logs.Change{})
	r.expect("1", entry("a", ""))
	entered, open := make(chan struct{}, 8), make(chan struct{})
	r.fs.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.Sync {
			select {
			case <-open:
			default:
				entered <- struct{}{}
				<-open
			}
		}
		return nil
	})
	defer r.fs.SetHook(nil)
	results := make(chan string, 3)
	// The first one leads and cannot leave before the disk answers, see wal.AppendLead.
	go func() { results <- "first " + r.put(entry("b", "")) }()
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cut := make(chan string, 2)
	for _, id := range []string{"b", "c"} { // a duplicate, and one of its own
		go func() { cut <- r.putWith(ctx, false, entry(id, "")) }()
	}
	for late := time.Now().Add(time.Minute); r.log().info().Last < 3; { // both are judged
		if time.Now().After(late) {
			close(open)
			t.Fatal("never: both are judged")
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	for range 2 {
		if got := <-cut; got != "unavailable" {
			t.Errorf("a caller that left gets %s", got)
		}
	}
	go func() { results <- "again " + r.put(entry("c", "")) }()
	if page, err := r.Read(t.Context(), "log", logs.Query{Beginning: true}); err != nil || len(page.Entries) != 1 {
		t.Errorf("a reader sees %d entries, %v: some are not durable", len(page.Entries), err)
	}
	select {
	case got := <-results:
		t.Errorf("%s is answered before the disk is", got)
	default:
	}
	close(open)
	got := map[string]bool{<-results: true, <-results: true}
	if !got["first 2"] || !got["again 3 again"] {
		t.Errorf("the answers are %v", got)
	}
	if ids := r.ids(); ids != "a b c" {
		t.Errorf("the log holds %s", ids)
	}
}

// TestClockMovedAnHourOverARestart: the log's time counts what passed while it was served. Neither an
// outage nor a clock that was set makes an id older.
func TestClockMovedAnHourOverARestart(t *testing.T) {
	for _, jump := range []time.Duration{-time.Hour, time.Hour, 1000 * time.Hour} {
		r := newRig(t, logs.Change{})
		r.put(entry("a", ""))
		r.clock.advance(time.Minute)
		r.put(entry("b", ""))
		for range 3 {
			r.close()
			r.clock = new(clock)
			r.clock.advance(jump)
			r.open()
			r.expect("1 again, 2 again", entry("a", ""), entry("b", ""))
		}
		r.clock.advance(4 * time.Minute)
		r.expect("3, 2 again", entry("a", ""), entry("b", ""))
		r.close()
	}
}

// TestAnswerOfTheFirstBatchLost: batches 2 to 5 were acknowledged when batch 1 is tried again. It gets
// the entries that it has, or is refused when it never came.
func TestAnswerOfTheFirstBatchLost(t *testing.T) {
	batch := func(n int, id func(int) string) (items []logs.Item) {
		for i := range 3 {
			items = append(items, entry(id((n-1)*3+i+1), fmt.Sprint(n, i)))
		}
		return items
	}
	plain := func(i int) string { return fmt.Sprint("id-", i) }
	structured := func(i int) string { return fmt.Sprintf("host:%d:0123456789abcdef", i) }
	for name, id := range map[string]func(int) string{"ids": plain, "structured": structured} {
		identity, _ := logs.ParseIdentity(name)
		r := newRig(t, logs.Change{Identity: &identity})
		for n := 1; n <= 5; n++ {
			r.put(batch(n, id)...)
		}
		r.expect("1 again, 2 again, 3 again", batch(1, id)...)
		r.crash()
		r.expect("1 again, 2 again, 3 again", batch(1, id)...)
		r.snapshot()
		r.crash()
		r.expect("1 again, 2 again, 3 again", batch(1, id)...)
		r.expect("13 again, 14 again, 15 again", batch(5, id)...)
		r.close()
	}
	// The request of batch 1 was lost, not its answer: with sequences this shows.
	identity := logs.Structured
	r := newRig(t, logs.Change{Identity: &identity})
	r.expect("sequence-gap, sequence-gap, sequence-gap", batch(2, structured)...)
	r.expect("1, 2, 3", batch(1, structured)...)
	r.expect("4, 5, 6", batch(2, structured)...)
}

// TestReadersDoNotWaitForASlowDisk: a reader whose entry is on its way to the disk waits no longer than
// it said, and not when the manager stops.
func TestReadersDoNotWaitForASlowDisk(t *testing.T) {
	r := newRig(t, logs.Change{})
	entered, open := make(chan struct{}, 8), make(chan struct{})
	r.fs.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.Sync {
			entered <- struct{}{}
			<-open
		}
		return nil
	})
	defer r.fs.SetHook(nil)
	written := make(chan string, 1)
	go func() { written <- r.put(entry("a", "")) }()
	<-entered
	read := func(wait time.Duration) chan error {
		done := make(chan error, 1)
		go func() {
			page, err := r.Read(t.Context(), "log", logs.Query{Beginning: true, Wait: wait})
			if err == nil && len(page.Entries) > 0 {
				err = errors.New("it got what is not durable")
			}
			done <- err
		}()
		return done
	}
	ends := func(what string, done chan error) {
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("never: %s", what)
		}
	}
	ends("a reader's time is over", read(time.Millisecond))
	held := read(logs.MaxWait)
	r.Drain()
	ends("the manager stops", held)
	ends("the manager has stopped", read(logs.MaxWait))
	close(open)
	if got := <-written; got != "1" {
		t.Errorf("the append gets %s", got)
	}
}

// TestPagesCountAllThatTheyCarry: ids and properties are bytes of a page, too.
func TestPagesCountAllThatTheyCarry(t *testing.T) {
	r := newRig(t, logs.Change{})
	const large = logs.MaxPropertiesBytes / 4
	want := logs.MaxPageBytes / large
	for range want + 9 {
		r.put(logs.Item{Properties: []logs.Property{{Name: "p", Value: strings.Repeat("v", large-1)}}})
	}
	page, err := r.Read(t.Context(), "log", logs.Query{Beginning: true, Limit: logs.MaxLimit})
	if err != nil || len(page.Entries) != want {
		t.Errorf("the page has %d entries, want %d: %v", len(page.Entries), want, err)
	}
}
