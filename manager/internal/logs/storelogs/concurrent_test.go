package storelogs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
)

// readersWoken: a reader that is held gets the entry, whichever manager took it; one whose log is deleted gets an error, and
// none outlasts Drain.
func readersWoken(e *env) {
	e.make(logs.Change{})
	m := e.managers()
	type read struct {
		page logs.Page
		err  error
	}
	hold := func() chan read {
		done := make(chan read, 1)
		go func() {
			page, err := m[1].Read(e.Context(), logName, logs.Query{After: e.last(m[1]), Wait: logs.MaxWait})
			done <- read{page, err}
		}()
		for late := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			if i, err := m[1].Get(e.Context(), logName); err != nil || i.Readers > 0 {
				return done
			}
			if time.Now().After(late) {
				e.Fatal("never: the reader is held")
			}
		}
	}
	held := hold()
	e.expect("1", entry("a", ""))
	if r := <-held; r.err != nil || len(r.page.Entries) != 1 || r.page.Cursor != 1 {
		e.Errorf("the reader got %+v", r)
	}
	held = hold()
	if err := m[0].Delete(e.Context(), logName); err != nil {
		e.Fatal(err)
	}
	if r := <-held; codeOf(r.err) != "not-found" {
		e.Errorf("the reader of a deleted log got %+v", r)
	}
	e.make(logs.Change{})
	held = hold()
	m[1].Drain()
	if r := <-held; r.err != nil || len(r.page.Entries) != 0 {
		e.Errorf("the reader of a manager that stops got %+v", r)
	}
}

// last is the newest entry of the log.
func (e *env) last(engine *Engine) uint64 {
	info, err := engine.Get(e.Context(), logName)
	if err != nil {
		e.Errorf("Get: %v", err)
	}
	return info.Last
}

// madeAndDeleted: a log that is made again knows nothing of the one before.
func madeAndDeleted(e *env) {
	if got := e.say(entry("a", "")); got != "not-found" {
		e.Errorf("an append to no log: %s", got)
	}
	if _, err := e.rig.Engine.Read(e.Context(), logName, logs.Query{}); codeOf(err) != "not-found" {
		e.Errorf("a read of no log: %v", err)
	}
	for round := range 2 {
		e.make(logs.Change{})
		e.expect("1, 2", entry("a", fmt.Sprint(round)), entry("b", ""))
		for n := range 300 {
			if n%100 == 0 {
				e.say(entry(fmt.Sprint(n), ""))
			}
		}
		window := time.Minute
		info, created, err := e.rig.Engine.Put(e.Context(), logName, logs.Change{Window: &window})
		if err != nil || created || info.Config.Window != window {
			e.Errorf("a change: %+v, %v, %v", info.Config, created, err)
		}
		if _, _, err := e.rig.Engine.Put(e.Context(), logName, logs.Change{Window: new(time.Duration(2 * time.Minute)), MakeOnly: true}); codeOf(err) != "forbidden" {
			e.Errorf("a change that may only make: %v", err)
		}
		for _, name := range []string{"other", "third"} {
			if _, _, err := e.rig.Engine.Put(e.Context(), name, logs.Change{}); (err != nil) != (name == "third") || name == "third" && codeOf(err) != "too-many-logs" {
				e.Errorf("log %s: %v", name, err)
			}
		}
		infos, err := e.rig.Engine.List(e.Context(), "", 10)
		if err != nil || len(infos) != 2 || infos[0].Name != logName || infos[1].Name != "other" {
			e.Errorf("the logs are %+v, %v", infos, err)
		}
		infos, err = e.rig.Engine.List(e.Context(), logName, 10)
		if err != nil || len(infos) != 1 || infos[0].Name != "other" {
			e.Errorf("the logs after %s are %+v, %v", logName, infos, err)
		}
		for _, name := range []string{logName, "other"} {
			if err := e.rig.Engine.Delete(e.Context(), name); err != nil {
				e.Fatal(err)
			}
		}
		e.rig.duties()
		e.rig.restart(0)
	}
	if err := e.rig.Engine.Delete(e.Context(), logName); codeOf(err) != "not-found" {
		e.Errorf("a second deletion: %v", err)
	}
	if _, _, err := e.rig.Engine.Put(e.Context(), "no/name", logs.Change{}); codeOf(err) != "field log" {
		e.Errorf("a bad name: %v", err)
	}
}

// linearizable: callers of two managers append and read at once, over restarts. Their answers are those that one caller
// after the other would have been.
func linearizable(e *env) {
	e.make(logs.Change{})
	var h history
	rnd := rand.New(rand.NewPCG(1, 5))
	for range 3 {
		var wg sync.WaitGroup
		for _, m := range e.managers() {
			rnd := rand.New(rand.NewPCG(rnd.Uint64(), 1))
			wg.Go(func() { h.run(e.T, m, 3, 12, rnd, func() bool { return false }) })
		}
		wg.Wait()
		e.rig.restart(0)
	}
	h.check(e.caller)
}

// manyCallers: many callers of two managers append batches, some of them twice. A reader that follows sees each once,
// without a gap.
func manyCallers(e *env) {
	e.make(logs.Change{})
	const callers, batches, size = 6, 8, 3
	m := e.managers()
	followed := make(chan error, 1)
	go func() {
		seen := make(map[string]bool)
		q := logs.Query{Wait: logs.MaxWait}
		for q.After < callers*batches*size {
			page, err := m[1].Read(e.Context(), logName, q)
			if err != nil {
				followed <- err
				return
			}
			for i, en := range page.Entries {
				if en.Number != q.After+uint64(i)+1 || seen[en.ID] {
					followed <- fmt.Errorf("entry %d with the id %s comes after cursor %d, position %d", en.Number, en.ID, q.After, i)
					return
				}
				seen[en.ID] = true
			}
			q.After = page.Cursor
		}
		followed <- nil
	}()
	var wg sync.WaitGroup
	for c := range callers * 2 {
		wg.Go(func() {
			for b := range batches {
				var items []logs.Item
				for i := range size {
					items = append(items, entry(fmt.Sprint(c%callers, "-", b, "-", i), "")) // two callers for each
				}
				for {
					out, err := m[c%2].Append(e.Context(), logName, items, false)
					if codeOf(err) == "unavailable" {
						continue // its turn did not come
					}
					if err != nil {
						e.Errorf("Append: %v", err)
					}
					for i, o := range out {
						if o.Err != nil || o.Number != out[0].Number+uint64(i) {
							e.Errorf("the outcomes are %+v", out)
						}
					}
					break
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-followed:
		if err != nil {
			e.Error(err)
		}
	case <-time.After(patience):
		e.Error("never: the reader has seen all")
	}
	if n := len(e.all()); n != callers*batches*size {
		e.Errorf("the log holds %d entries, want %d", n, callers*batches*size)
	}
}

// retriesUnderWay: the same id from many callers at once is one entry, and all get its number.
func retriesUnderWay(e *env) {
	e.make(logs.Change{})
	m := e.managers()
	outs := make(chan error, 20)
	for c := range cap(outs) {
		go func() {
			out, err := m[c%2].Append(e.Context(), logName, []logs.Item{entry("a", "payload")}, false)
			for codeOf(err) == "unavailable" {
				out, err = m[c%2].Append(e.Context(), logName, []logs.Item{entry("a", "payload")}, false)
			}
			if err == nil && (out[0].Err != nil || out[0].Number != 1) {
				err = errors.Join(out[0].Err, fmt.Errorf("it is entry %d", out[0].Number))
			}
			outs <- err
		}()
	}
	for range cap(outs) {
		if err := <-outs; err != nil {
			e.Error(err)
		}
	}
	if got := e.allIDs(); got != "a" {
		e.Errorf("the log holds %s", got)
	}
}
