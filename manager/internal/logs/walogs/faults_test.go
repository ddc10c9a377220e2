package walogs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/logs/logstest"
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
							items = append(items, logstest.Entry(id, id+strings.Repeat("x", i*13)))
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
			for _, e := range r.All() {
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

// TestReadErrorInRecoveryRefusesTheLog: a file that cannot be read is no shorter log, and the other logs are served.
func TestReadErrorInRecoveryRefusesTheLog(t *testing.T) {
	r := newRig(t, logs.Change{})
	for i := range 300 {
		r.Say(logstest.Entry(fmt.Sprint("a", i), strings.Repeat("p", 200)))
	}
	r.snapshot()
	for i := range 200 {
		r.Say(logstest.Entry(fmt.Sprint("b", i), strings.Repeat("p", 200)))
	}
	if _, _, err := r.Put(t.Context(), "other", logs.Change{}); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(r.dir, "other"), 0o700); err != nil {
		t.Fatal(err)
	}
	r.close()
	broken := errors.New("input/output error")
	for n := range 100 {
		reads := 0
		r.fs.SetHook(func(op faultfs.Op) error {
			if op.Kind != faultfs.Read || !strings.Contains(op.Path, "/log/") {
				return nil
			}
			if reads++; reads == n+1 {
				return broken
			}
			return nil
		})
		r.open()
		r.fs.SetHook(nil)
		if reads <= n {
			if n < 3 {
				t.Fatalf("a start has %d reads", reads)
			}
			r.close()
			break
		}
		_, _, err := r.Put(t.Context(), "log", logs.Change{})
		if logstest.Code(err) != "unavailable" || !strings.Contains(err.Error(), `"log"`) {
			t.Fatalf("making a log whose read %d failed: %v", n, err)
		}
		r.Expect("unavailable", logstest.Entry("a0", ""))
		if err := r.Delete(t.Context(), "log"); logstest.Code(err) != "unavailable" {
			t.Fatalf("deleting it: %v", err)
		}
		if infos, err := r.List(t.Context(), "", 10); err != nil || len(infos) != 2 || !strings.Contains(infos[0].Failed, broken.Error()) || infos[1].Failed != "" {
			t.Fatalf("the list is %+v, %v", infos, err)
		}
		if _, err := r.Append(t.Context(), "other", []logs.Item{{}}, false); err != nil {
			t.Fatalf("the other log: %v", err)
		}
		r.close()
	}
	r.close()
	r.open()
	r.Expect("1 again, 500 again", logstest.Entry("a0", strings.Repeat("p", 200)), logstest.Entry("b199", strings.Repeat("p", 200)))
}

// TestAppendErrorWithTheRecordOnDisk: the sync fails, and nobody knows whether the record is there.
// Nothing is answered but that, whatever is asked, until a restart has looked.
func TestAppendErrorWithTheRecordOnDisk(t *testing.T) {
	for _, onDisk := range []bool{true, false} {
		r := newRig(t, logs.Change{})
		r.Expect("1", logstest.Entry("a", ""))
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
			r.Expect("unavailable", logstest.Entry("b", ""))
		}
		r.fs.SetHook(nil)
		r.Expect("unavailable", logstest.Entry("b", ""))
		if _, err := r.ByID(t.Context(), "log", "b"); logstest.Code(err) != "unavailable" {
			t.Errorf("by-id of what is not known: %v", err)
		}
		if got := r.IDs(); got != "a" {
			t.Errorf("a failed log has the entries %s", got)
		}
		if info, err := r.Get(t.Context(), "log"); err != nil || info.Failed == "" {
			t.Errorf("the log does not say that it failed: %+v, %v", info, err)
		}
		r.crashTo(after)
		if onDisk {
			r.Expect("2 again, 3", logstest.Entry("b", ""), logstest.Entry("c", ""))
		} else {
			r.Expect("2, 3", logstest.Entry("b", ""), logstest.Entry("c", ""))
		}
		r.close()
	}
}

// A snapshot that cannot be written costs nothing but time at the next start.
func TestFailedSaveCostsOnlyTime(t *testing.T) {
	for n := range 12 {
		r := newRig(t, logs.Change{})
		for i := range 50 {
			r.Say(logstest.Entry(fmt.Sprint(i), ""))
		}
		r.snapshot()
		r.Say(logstest.Entry("50", ""))
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
		r.Expect("51 again, 52", logstest.Entry("50", ""), logstest.Entry("51", ""))
		r.crash()
		r.Expect("1 again, 51 again, 52 again", logstest.Entry("0", ""), logstest.Entry("50", ""), logstest.Entry("51", ""))
		r.snapshot()
		r.crash()
		r.Expect("1 again, 51 again, 53", logstest.Entry("0", ""), logstest.Entry("50", ""), logstest.Entry("52", ""))
		r.close()
	}
}

// TestWaitersAndTheirContexts: a duplicate of an append that is not durable waits for it, no longer
// than its own context lasts. An append whose caller left keeps its id.
func TestWaitersAndTheirContexts(t *testing.T) {
	r := newRig(t, logs.Change{})
	r.Expect("1", logstest.Entry("a", ""))
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
	go func() { results <- "first " + r.Say(logstest.Entry("b", "")) }()
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cut := make(chan string, 2)
	for _, id := range []string{"b", "c"} { // a duplicate, and one of its own
		go func() { cut <- r.SayWith(ctx, false, logstest.Entry(id, "")) }()
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
	go func() { results <- "again " + r.Say(logstest.Entry("c", "")) }()
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
	if ids := r.IDs(); ids != "a b c" {
		t.Errorf("the log holds %s", ids)
	}
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
	go func() { written <- r.Say(logstest.Entry("a", "")) }()
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
