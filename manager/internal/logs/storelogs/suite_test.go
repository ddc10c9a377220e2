package storelogs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
)

// patience bounds everything the suite waits for.
const patience = 2 * time.Minute

// runSuite runs the suite with a rig for each case.
func runSuite(t *testing.T, prepare func(t *testing.T) *rig) {
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
		"FullOfClientsRefuses":       fullOfClientsRefuses,
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
			r := prepare(t)
			test(&env{&caller{t, func() *Engine { return r.Engine }}, r, t})
		})
	}
}

type env struct {
	*caller
	rig *rig
	*testing.T
}

// make makes the log.
func (e *env) make(ch logs.Change) {
	e.Helper()
	if _, created, err := e.rig.Engine.Put(e.Context(), logName, ch); err != nil || !created {
		e.Fatalf("Put: %v, %v", created, err)
	}
}

// managers are two engines on the same data, or twice the same one.
func (e *env) managers() []*Engine {
	if !e.rig.st.Capabilities().Shared {
		return []*Engine{e.rig.Engine, e.rig.Engine}
	}
	second, _ := e.rig.start(e.rig.open(e.T), 0)
	e.Cleanup(func() { e.rig.stop(second) })
	return []*Engine{e.rig.Engine, second}
}

// orderAndAge: ids expire after a restart as they would have without it.
func orderAndAge(e *env) {
	e.make(logs.Change{})
	for i := range 5 {
		e.expect(fmt.Sprint(i+1), entry(fmt.Sprint(i), ""))
		if i < 4 {
			e.rig.advance(time.Minute)
		}
	}
	e.rig.restart(0) // 0 is 4 minutes old
	e.expect("1 again, 5 again", entry("0", ""), entry("4", ""))
	e.rig.advance(time.Minute + e.rig.slack())
	e.expect("6, 2 again", entry("0", ""), entry("1", ""))
	e.rig.duties()
	e.rig.advance(2 * time.Minute)
	e.expect("4 again, 7, 6 again", entry("3", ""), entry("2", ""), entry("0", ""))
	e.rig.duties()
	e.expect("4 again, 7 again, 6 again, 8", entry("3", ""), entry("2", ""), entry("0", ""), entry("1", ""))
	if keys := e.info().Keys; keys != 5 {
		e.Errorf("the window holds %d ids, want 3, 4, 0, 2 and 1", keys)
	}
}

// expiredID: what is too old gives no entry, by whatever call.
func expiredID(e *env) {
	e.make(logs.Change{})
	e.expect("1", entry("a", ""))
	e.rig.advance(5*time.Minute - 1)
	if en, err := e.rig.Engine.ByID(e.Context(), logName, "a"); err != nil || en.Number != 1 {
		e.Errorf("by-id gives %d, %v before the id expires", en.Number, err)
	}
	e.rig.advance(1 + e.rig.slack())
	if _, err := e.rig.Engine.ByID(e.Context(), logName, "a"); codeOf(err) != "not-found" {
		e.Errorf("by-id of an expired id: %v", err)
	}
	e.expect("2, 2 again", entry("a", "other"), entry("a", "other"))
}

// sameID: the same id with another payload is refused, before and after a restart, and writes nothing.
func sameID(e *env) {
	e.make(logs.Change{})
	e.expect("1, payload-mismatch, 1 again", entry("a", "1"), entry("a", "2"), entry("a", "1"))
	if i := e.info(); i.Appended != 1 || i.Duplicates != 1 || i.Mismatches != 1 {
		e.Errorf("the counters are %+v", i.Counters)
	}
	e.rig.restart(0)
	e.expect("payload-mismatch, 1 again, 2", entry("a", "2"), entry("a", "1"), entry("b", ""))
	e.rig.restart(0)
	e.expect("payload-mismatch, 1 again", entry("a", ""), entry("a", "1"))
	e.expect("3, 4", logs.Item{Payload: []byte("same")}, logs.Item{Payload: []byte("same")})
	e.expect("5, 5 again", logs.Item{Payload: []byte("same"), Derive: logs.DeriveMD5}, logs.Item{Payload: []byte("same"), Derive: logs.DeriveMD5})
	if got := e.allIDs(); got != "a b   51037a4a37730f52c8732586d3aaa316" {
		e.Errorf("the log holds %s", got)
	}
}

func (e *env) open(engine *Engine, writer string, want uint64) {
	e.Helper()
	if epoch, err := engine.OpenWriter(e.Context(), logName, writer); err != nil || epoch != want {
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
	e.expect("1, fenced, fenced", by("w", 1, "a"), by("w", 2, "b"), by("other", 1, "b"))
	e.open(m[1], "w", 2)
	e.open(m[1], "other", 1)
	for _, jump := range []time.Duration{0, -time.Hour, time.Hour, -1000 * time.Hour} {
		e.expect("fenced, fenced", by("w", 1, "b"), by("w", 1, "a"))
		e.say(by("w", 2, "new"), by("other", 1, "more"))
		e.rig.restart(jump)
		e.expect("fenced, fenced", by("w", 1, "b"), by("w", 1, "a"))
	}
	e.open(e.rig.Engine, "w", 3)
	e.expect("fenced", by("w", 2, "late"))
	if got := e.allIDs(); got != "a new more" {
		e.Errorf("the log holds %s", got)
	}
	all, err := e.rig.Engine.Writers(e.Context(), logName, "", 1)
	if err != nil || len(all) != 1 || all[0] != (logs.Writer{Name: "other", Epoch: 1}) {
		e.Errorf("the first writer is %v, %v", all, err)
	}
	all, err = e.rig.Engine.Writers(e.Context(), logName, "other", 10)
	if err != nil || len(all) != 1 || all[0] != (logs.Writer{Name: "w", Epoch: 3}) {
		e.Errorf("the other writers are %v, %v", all, err)
	}
}

// removedWriter: a writer that is removed makes room, and its epochs never come back.
func removedWriter(e *env) {
	e.make(logs.Change{})
	for n := range uint64(3) {
		e.open(e.rig.Engine, "w", n+1)
	}
	if err := e.rig.Engine.RemoveWriter(e.Context(), logName, "w"); err != nil {
		e.Fatal(err)
	}
	if err := e.rig.Engine.RemoveWriter(e.Context(), logName, "w"); codeOf(err) != "not-found" {
		e.Errorf("a second removal: %v", err)
	}
	e.open(e.rig.Engine, "one more", 4)
	for range 2 {
		e.expect("fenced", by("w", 3, ""))
		e.rig.restart(0)
	}
	e.open(e.rig.Engine, "w", 4)
	e.expect("fenced, 1", by("w", 3, ""), by("w", 4, ""))
	if n := e.info().Writers; n != 2 {
		e.Errorf("the log has %d writers, want 2", n)
	}
}

// clockMoved: the log's time counts what passed while it was served. Neither an outage nor a clock that was set makes an
// id older.
func clockMoved(e *env) {
	e.make(logs.Change{})
	e.expect("1", entry("a", ""))
	e.rig.advance(time.Minute)
	e.expect("2", entry("b", ""))
	for _, jump := range []time.Duration{-time.Hour, time.Hour, 1000 * time.Hour} {
		e.rig.restart(jump)
		e.expect("1 again, 2 again", entry("a", ""), entry("b", ""))
	}
	e.rig.advance(4*time.Minute + e.rig.slack())
	e.expect("3, 2 again", entry("a", ""), entry("b", ""))
}

// firstBatchLost: batches 2 to 5 were acknowledged when batch 1 is tried again. It gets the entries that it has, or is
// refused when it never came.
func firstBatchLost(e *env) {
	batch := func(n int, id func(int) string) (items []logs.Item) {
		for i := range 3 {
			items = append(items, entry(id((n-1)*3+i+1), fmt.Sprint(n, i)))
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
			e.expect("sequence-gap, sequence-gap, sequence-gap", batch(2, id)...) // the request was lost, not its answer
		}
		for n := 1; n <= 5; n++ {
			e.say(batch(n, id)...)
		}
		for range 2 {
			e.expect("1 again, 2 again, 3 again", batch(1, id)...)
			e.rig.restart(0)
		}
		e.expect("13 again, 14 again, 15 again", batch(5, id)...)
		if en, err := e.rig.Engine.ByID(e.Context(), logName, id(4)); err != nil || en.Number != 4 || string(en.Payload) != "2 0" {
			e.Errorf("by-id gives %+v, %v", en, err)
		}
		if err := e.rig.Engine.Delete(e.Context(), logName); err != nil {
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
		e.say(items...)
	}
	page, err := e.rig.Engine.Read(e.Context(), logName, logs.Query{Beginning: true, Limit: logs.MaxLimit})
	if err != nil || len(page.Entries) != want {
		e.Errorf("the page has %d entries, want %d: %v", len(page.Entries), want, err)
	}
	last := e.info().Last
	if _, err := e.rig.Engine.Read(e.Context(), logName, logs.Query{After: last + 1}); codeOf(err) != "field after" {
		e.Errorf("a cursor of the future: %v", err)
	}
	page, err = e.rig.Engine.Read(e.Context(), logName, logs.Query{After: last})
	if err != nil || len(page.Entries) != 0 || page.Cursor != last {
		e.Errorf("the page at the end is %+v, %v", page, err)
	}
}

// retention deletes what is too old or too much, shows a reader that it was overtaken, and keeps the ids of the window.
func retention(e *env) {
	retain, bytes := time.Minute, int64(logs.MinRetained)
	e.make(logs.Change{Retain: &retain, RetainLen: &bytes})
	id := func(i int) logs.Item { return entry(fmt.Sprint(i), strings.Repeat("p", 2000)) }
	put := func(from, to int) {
		for ; from <= to; from += 10 {
			var items []logs.Item
			for i := from; i < from+10; i++ {
				items = append(items, id(i))
			}
			e.say(items...)
		}
	}
	put(1, 200)
	e.rig.advance(30 * time.Second)
	put(201, 300)
	e.rig.duties()
	if first := e.info().First; first != 1 {
		e.Errorf("the first entry is %d before anything is too old", first)
	}
	e.rig.advance(30*time.Second + e.rig.slack())
	e.rig.duties()
	info := e.info()
	if info.First < 100 || info.First > 201 {
		e.Errorf("the first entry is %d", info.First)
	}
	if _, err := e.rig.Engine.Read(e.Context(), logName, logs.Query{After: 0}); codeOf(err) != "cursor-gone" {
		e.Errorf("a reader that was overtaken: %v", err)
	}
	if _, err := e.rig.Engine.ByID(e.Context(), logName, "1"); codeOf(err) != "not-found" {
		e.Errorf("by-id of an entry that was deleted: %v", err)
	}
	e.rig.restart(0)
	e.expect("1 again, 300 again", id(1), id(300))
	if all := e.all(); all[0].Number != e.info().First || all[len(all)-1].Number != 300 {
		e.Errorf("the log holds %d to %d", all[0].Number, all[len(all)-1].Number)
	}
	put(301, 1000)
	e.rig.duties()
	if all := e.all(); all[0].Number < 400 || all[0].Number > 600 {
		e.Errorf("the log holds %d to %d when a MiB is kept", all[0].Number, all[len(all)-1].Number)
	}
	e.rig.advance(time.Minute + e.rig.slack())
	e.rig.duties()
	if info := e.info(); info.First != 1001 || info.Last != 1000 {
		e.Errorf("the log holds %d to %d when all is too old", info.First, info.Last)
	}
	e.rig.restart(0)
	e.expect("1001", entry("new", ""))
	if got := e.allIDs(); !strings.HasSuffix(got, "new") {
		e.Errorf("the log holds %s", got)
	}
}

// atomicBatches: one refusal, and nothing is written.
func atomicBatches(e *env) {
	e.make(logs.Change{})
	say := func(want string, items ...logs.Item) {
		e.Helper()
		if got := e.sayWith(e.Context(), true, items...); got != want {
			e.Errorf("the outcomes are %s, want %s", got, want)
		}
	}
	say("1, 2, 1 again", entry("a", ""), entry("b", ""), entry("a", ""))
	say("1 again, not-written, not-written, payload-mismatch", entry("a", ""), entry("c", ""), entry("c", ""), entry("b", "other"))
	e.expect("3", entry("c", "another payload"))
	say("2 again, 4", entry("b", ""), entry("d", ""))
	if got := e.allIDs(); got != "a b c d" {
		e.Errorf("the log holds %s", got)
	}
}
