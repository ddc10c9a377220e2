// Package logstest is the conformance suite of engines that keep logs.
package logstest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
)

// Rig is an engine under test, with no log so far.
type Rig struct {
	// Engine is the engine that is open now.
	Engine func() logs.Engine
	// Advance moves the engine's time on.
	Advance func(time.Duration)
	// Duty does what the engine does in the background.
	Duty func()
	// Restart ends the engine and opens it again on the same data, with its clock moved by jump. It is nil when the engine
	// is not durable.
	Restart func(jump time.Duration)
	// Second opens another engine on the same data; nil when the engine is not shared.
	Second func() logs.Engine
	// Restored opens an engine on the same data which says that they were restored to an older point: ids that the log does
	// not know are refused for as long as left says, and epochs continue above floor. It ends the engine that was open.
	Restored func(floor uint64, left func() time.Duration)
	// Slack is how much longer than asked a window may last.
	Slack time.Duration
}

// Factory prepares a Rig for one test.
type Factory func(t *testing.T) *Rig

// patience bounds everything the suite waits for.
const patience = 2 * time.Minute

// Run runs the suite.
func Run(t *testing.T, factory Factory) {
	for name, test := range map[string]func(*env){
		"OrderAndAgeAfterRestart":    orderAndAge,
		"ExpiredIDDoesNotAnswer":     expiredID,
		"SameIDOtherPayload":         sameID,
		"WritersFencedByEpoch":       writersFenced,
		"RemovedWriterStaysFenced":   removedWriter,
		"ClockMovedAnHour":           clockMoved,
		"AnswerOfFirstBatchLost":     firstBatchLost,
		"PagesCountAllTheyCarry":     pages,
		"Retention":                  retention,
		"AtomicBatches":              atomicBatches,
		"FullWindowForgetsOldest":    fullWindow,
		"FullWindowRefuses":          fullRefuses,
		"RefusedAppendMakesRoom":     refusedMakesRoom,
		"ManagersAgreeOnTheTime":     agreeOnTime,
		"FullWindowOfClients":        fullOfClients,
		"ReadersAreWoken":            readersWoken,
		"LogsAreMadeAndDeleted":      madeAndDeleted,
		"HistoriesAreLinearizable":   linearizable,
		"ManyCallersNoGapNoDouble":   manyCallers,
		"RetriesWhileUnderWayAreOne": retriesUnderWay,
		"QuarantineRefusesUnknownID": quarantineRefuses,
		"QuarantineOfClients":        quarantineOfClients,
		"NoEpochTwiceAfterARestore":  noEpochTwice,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := factory(t)
			test(&env{&Caller{t, r.Engine}, r, t})
		})
	}
}

type env struct {
	*Caller
	rig *Rig
	*testing.T
}

// make makes the log.
func (e *env) make(ch logs.Change) {
	e.Helper()
	if _, created, err := e.rig.Engine().Put(e.Context(), LogName, ch); err != nil || !created {
		e.Fatalf("Put: %v, %v", created, err)
	}
}

// restart is a restart where the engine survives one.
func (e *env) restart() {
	if e.rig.Restart != nil {
		e.rig.Restart(0)
	}
}

// managers are two engines on the same data, or twice the same one.
func (e *env) managers() []logs.Engine {
	if e.rig.Second == nil {
		return []logs.Engine{e.rig.Engine(), e.rig.Engine()}
	}
	return []logs.Engine{e.rig.Engine(), e.rig.Second()}
}

// orderAndAge: ids expire after a restart as they would have without it.
func orderAndAge(e *env) {
	e.make(logs.Change{})
	for i := range 5 {
		e.Expect(fmt.Sprint(i+1), Entry(fmt.Sprint(i), ""))
		if i < 4 {
			e.rig.Advance(time.Minute)
		}
	}
	e.restart() // 0 is 4 minutes old
	e.Expect("1 again, 5 again", Entry("0", ""), Entry("4", ""))
	e.rig.Advance(time.Minute + e.rig.Slack)
	e.Expect("6, 2 again", Entry("0", ""), Entry("1", ""))
	e.rig.Duty()
	e.rig.Advance(2 * time.Minute)
	e.Expect("4 again, 7, 6 again", Entry("3", ""), Entry("2", ""), Entry("0", ""))
	e.rig.Duty()
	e.Expect("4 again, 7 again, 6 again, 8", Entry("3", ""), Entry("2", ""), Entry("0", ""), Entry("1", ""))
	if keys := e.Info().Keys; keys != 5 {
		e.Errorf("the window holds %d ids, want 3, 4, 0, 2 and 1", keys)
	}
}

// expiredID: what is too old gives no entry, by whatever call.
func expiredID(e *env) {
	e.make(logs.Change{})
	e.Expect("1", Entry("a", ""))
	e.rig.Advance(5*time.Minute - 1)
	if en, err := e.rig.Engine().ByID(e.Context(), LogName, "a"); err != nil || en.Number != 1 {
		e.Errorf("by-id gives %d, %v before the id expires", en.Number, err)
	}
	e.rig.Advance(1 + e.rig.Slack)
	if _, err := e.rig.Engine().ByID(e.Context(), LogName, "a"); Code(err) != "not-found" {
		e.Errorf("by-id of an expired id: %v", err)
	}
	e.Expect("2, 2 again", Entry("a", "other"), Entry("a", "other"))
}

// sameID: the same id with another payload is refused, before and after a restart, and writes nothing.
func sameID(e *env) {
	e.make(logs.Change{})
	e.Expect("1, payload-mismatch, 1 again", Entry("a", "1"), Entry("a", "2"), Entry("a", "1"))
	if i := e.Info(); i.Appended != 1 || i.Duplicates != 1 || i.Mismatches != 1 {
		e.Errorf("the counters are %+v", i.Counters)
	}
	e.restart()
	e.Expect("payload-mismatch, 1 again, 2", Entry("a", "2"), Entry("a", "1"), Entry("b", ""))
	e.restart()
	e.Expect("payload-mismatch, 1 again", Entry("a", ""), Entry("a", "1"))
	e.Expect("3, 4", logs.Item{Payload: []byte("same")}, logs.Item{Payload: []byte("same")})
	e.Expect("5, 5 again", logs.Item{Payload: []byte("same"), Derive: logs.DeriveMD5}, logs.Item{Payload: []byte("same"), Derive: logs.DeriveMD5})
	if got := e.IDs(); got != "a b   51037a4a37730f52c8732586d3aaa316" {
		e.Errorf("the log holds %s", got)
	}
}

func (e *env) open(engine logs.Engine, writer string, want uint64) {
	e.Helper()
	if epoch, err := engine.OpenWriter(e.Context(), LogName, writer); err != nil || epoch != want {
		e.Fatalf("OpenWriter: %d, %v, want %d", epoch, err, want)
	}
}

func by(writer string, epoch uint64, id string) logs.Item {
	return logs.Item{ID: id, Writer: writer, Epoch: epoch}
}

// writersFenced: the newer epoch counts, not the clock, over restarts and managers too.
func writersFenced(e *env) {
	e.make(logs.Change{})
	m := e.managers()
	e.open(m[0], "w", 1)
	e.Expect("1, fenced, fenced", by("w", 1, "a"), by("w", 2, "b"), by("other", 1, "b"))
	e.open(m[1], "w", 2)
	e.open(m[1], "other", 1)
	for _, jump := range []time.Duration{0, -time.Hour, time.Hour, -1000 * time.Hour} {
		e.Expect("fenced, fenced", by("w", 1, "b"), by("w", 1, "a"))
		e.Say(by("w", 2, "new"), by("other", 1, "more"))
		if e.rig.Restart != nil {
			e.rig.Restart(jump)
		}
		e.Expect("fenced, fenced", by("w", 1, "b"), by("w", 1, "a"))
	}
	e.open(e.rig.Engine(), "w", 3)
	e.Expect("fenced", by("w", 2, "late"))
	if got := e.IDs(); got != "a new more" {
		e.Errorf("the log holds %s", got)
	}
	all, err := e.rig.Engine().Writers(e.Context(), LogName, "", 1)
	if err != nil || len(all) != 1 || all[0] != (logs.Writer{Name: "other", Epoch: 1}) {
		e.Errorf("the first writer is %v, %v", all, err)
	}
	all, err = e.rig.Engine().Writers(e.Context(), LogName, "other", 10)
	if err != nil || len(all) != 1 || all[0] != (logs.Writer{Name: "w", Epoch: 3}) {
		e.Errorf("the other writers are %v, %v", all, err)
	}
}

// removedWriter: a writer that is removed makes room, and its epochs never come back.
func removedWriter(e *env) {
	e.make(logs.Change{})
	for n := range uint64(3) {
		e.open(e.rig.Engine(), "w", n+1)
	}
	if err := e.rig.Engine().RemoveWriter(e.Context(), LogName, "w"); err != nil {
		e.Fatal(err)
	}
	if err := e.rig.Engine().RemoveWriter(e.Context(), LogName, "w"); Code(err) != "not-found" {
		e.Errorf("a second removal: %v", err)
	}
	e.open(e.rig.Engine(), "one more", 4)
	for range 2 {
		e.Expect("fenced", by("w", 3, ""))
		e.restart()
	}
	e.open(e.rig.Engine(), "w", 4)
	e.Expect("fenced, 1", by("w", 3, ""), by("w", 4, ""))
	if n := e.Info().Writers; n != 2 {
		e.Errorf("the log has %d writers, want 2", n)
	}
}

// clockMoved: the log's time counts what passed while it was served. Neither an outage nor a clock that was set makes an
// id older.
func clockMoved(e *env) {
	if e.rig.Restart == nil {
		e.Skip("the engine survives no restart")
	}
	e.make(logs.Change{})
	e.Expect("1", Entry("a", ""))
	e.rig.Advance(time.Minute)
	e.Expect("2", Entry("b", ""))
	for _, jump := range []time.Duration{-time.Hour, time.Hour, 1000 * time.Hour} {
		e.rig.Restart(jump)
		e.Expect("1 again, 2 again", Entry("a", ""), Entry("b", ""))
	}
	e.rig.Advance(4*time.Minute + e.rig.Slack)
	e.Expect("3, 2 again", Entry("a", ""), Entry("b", ""))
}

// firstBatchLost: batches 2 to 5 were acknowledged when batch 1 is tried again. It gets the entries that it has, or is
// refused when it never came.
func firstBatchLost(e *env) {
	batch := func(n int, id func(int) string) (items []logs.Item) {
		for i := range 3 {
			items = append(items, Entry(id((n-1)*3+i+1), fmt.Sprint(n, i)))
		}
		return items
	}
	for name, id := range map[string]func(int) string{
		"ids":        func(i int) string { return fmt.Sprint("id-", i) },
		"structured": structuredID,
	} {
		identity, _ := logs.ParseIdentity(name)
		e.make(logs.Change{Identity: &identity})
		if identity == logs.Structured {
			e.Expect("sequence-gap, sequence-gap, sequence-gap", batch(2, id)...) // the request was lost, not its answer
		}
		for n := 1; n <= 5; n++ {
			e.Say(batch(n, id)...)
		}
		for range 2 {
			e.Expect("1 again, 2 again, 3 again", batch(1, id)...)
			e.restart()
		}
		e.Expect("13 again, 14 again, 15 again", batch(5, id)...)
		if en, err := e.rig.Engine().ByID(e.Context(), LogName, id(4)); err != nil || en.Number != 4 || string(en.Payload) != "2 0" {
			e.Errorf("by-id gives %+v, %v", en, err)
		}
		if err := e.rig.Engine().Delete(e.Context(), LogName); err != nil {
			e.Fatal(err)
		}
	}
}

func structuredID(i int) string { return fmt.Sprintf("host:%d:0123456789abcdef", i) }

// pages: ids and properties are bytes of a page, too.
func pages(e *env) {
	e.make(logs.Change{})
	const large = logs.MaxPropertiesBytes / 4
	want := logs.MaxPageBytes / large
	for range want/16 + 1 {
		var items []logs.Item
		for range 16 {
			items = append(items, logs.Item{Properties: []logs.Property{{Name: "p", Value: strings.Repeat("v", large-1)}}})
		}
		e.Say(items...)
	}
	page, err := e.rig.Engine().Read(e.Context(), LogName, logs.Query{Beginning: true, Limit: logs.MaxLimit})
	if err != nil || len(page.Entries) != want {
		e.Errorf("the page has %d entries, want %d: %v", len(page.Entries), want, err)
	}
	last := e.Info().Last
	if _, err := e.rig.Engine().Read(e.Context(), LogName, logs.Query{After: last + 1}); Code(err) != "field after" {
		e.Errorf("a cursor of the future: %v", err)
	}
	page, err = e.rig.Engine().Read(e.Context(), LogName, logs.Query{After: last})
	if err != nil || len(page.Entries) != 0 || page.Cursor != last {
		e.Errorf("the page at the end is %+v, %v", page, err)
	}
}

// retention deletes what is too old or too much, shows a reader that it was overtaken, and keeps the ids of the window.
func retention(e *env) {
	retain, bytes := time.Minute, int64(logs.MinRetained)
	e.make(logs.Change{Retain: &retain, RetainLen: &bytes})
	id := func(i int) logs.Item { return Entry(fmt.Sprint(i), strings.Repeat("p", 2000)) }
	put := func(from, to int) {
		for ; from <= to; from += 10 {
			var items []logs.Item
			for i := from; i < from+10; i++ {
				items = append(items, id(i))
			}
			e.Say(items...)
		}
	}
	put(1, 200)
	e.rig.Advance(30 * time.Second)
	put(201, 300)
	e.rig.Duty()
	if first := e.Info().First; first != 1 {
		e.Errorf("the first entry is %d before anything is too old", first)
	}
	e.rig.Advance(30*time.Second + e.rig.Slack)
	e.rig.Duty()
	info := e.Info()
	if info.First < 100 || info.First > 201 {
		e.Errorf("the first entry is %d", info.First)
	}
	if _, err := e.rig.Engine().Read(e.Context(), LogName, logs.Query{After: 0}); Code(err) != "cursor-gone" {
		e.Errorf("a reader that was overtaken: %v", err)
	}
	if _, err := e.rig.Engine().ByID(e.Context(), LogName, "1"); Code(err) != "not-found" {
		e.Errorf("by-id of an entry that was deleted: %v", err)
	}
	e.restart()
	e.Expect("1 again, 300 again", id(1), id(300))
	if all := e.All(); all[0].Number != e.Info().First || all[len(all)-1].Number != 300 {
		e.Errorf("the log holds %d to %d", all[0].Number, all[len(all)-1].Number)
	}
	put(301, 1000)
	e.rig.Duty()
	if all := e.All(); all[0].Number < 400 || all[0].Number > 600 {
		e.Errorf("the log holds %d to %d when a MiB is kept", all[0].Number, all[len(all)-1].Number)
	}
	e.rig.Advance(time.Minute + e.rig.Slack)
	e.rig.Duty()
	if info := e.Info(); info.First != 1001 || info.Last != 1000 {
		e.Errorf("the log holds %d to %d when all is too old", info.First, info.Last)
	}
	e.restart()
	e.Expect("1001", Entry("new", ""))
	if got := e.IDs(); !strings.HasSuffix(got, "new") {
		e.Errorf("the log holds %s", got)
	}
}

// atomicBatches: one refusal, and nothing is written.
func atomicBatches(e *env) {
	e.make(logs.Change{})
	say := func(want string, items ...logs.Item) {
		e.Helper()
		if got := e.SayWith(e.Context(), true, items...); got != want {
			e.Errorf("the outcomes are %s, want %s", got, want)
		}
	}
	say("1, 2, 1 again", Entry("a", ""), Entry("b", ""), Entry("a", ""))
	say("1 again, not-written, not-written, payload-mismatch", Entry("a", ""), Entry("c", ""), Entry("c", ""), Entry("b", "other"))
	e.Expect("3", Entry("c", "another payload"))
	say("2 again, 4", Entry("b", ""), Entry("d", ""))
	if got := e.IDs(); got != "a b c d" {
		e.Errorf("the log holds %s", got)
	}
}
