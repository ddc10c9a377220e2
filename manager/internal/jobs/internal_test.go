package jobs

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/oncegate/oncegate/manager/internal/codec"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// TestClaimsAfterAStoreThatHung: claims do not wait for others because the last batch took long.
func TestClaimsAfterAStoreThatHung(t *testing.T) {
	gathered := make(chan struct{})
	go func() {
		(&claimBatcher{expected: 2, took: 24 * time.Hour}).gather()
		close(gathered)
	}()
	select {
	case <-gathered:
	case <-time.After(2 * time.Minute):
		t.Error("they wait")
	}
}

// slow is a store of which each transaction takes a while.
type slow struct {
	store.Store
	on      atomic.Bool
	updates atomic.Int64
}

func (s *slow) Update(ctx context.Context, fn func(store.Tx) error) error {
	if s.on.Load() {
		s.updates.Add(1)
		time.Sleep(40 * time.Millisecond)
	}
	return s.Store.Update(ctx, fn)
}

// TestWorkersClaimTogether: two groups of workers become one. While one group's transaction runs the other one waits, so
// each would have every second transaction.
func TestWorkersClaimTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &slow{Store: mem.New(mem.Options{})}
		defer func() { _ = st.Close() }()
		q, err := New(st, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		const workers, rounds = 10, 12
		for range workers * rounds {
			if _, err := q.Enqueue(t.Context(), Submission{Function: "f"}); err != nil {
				t.Fatal(err)
			}
		}
		st.on.Store(true)
		var wg sync.WaitGroup
		for i := range workers {
			wg.Go(func() {
				if i >= workers/2 {
					time.Sleep(20 * time.Millisecond) // these come while the transaction of the others runs
				}
				for range rounds {
					if got, err := q.Claim(t.Context(), ClaimRequest{Worker: "w"}); err != nil || len(got) != 1 {
						t.Errorf("%v, %v", got, err)
					}
					time.Sleep(time.Millisecond) // the way of the answer and of the next claim
				}
			})
		}
		wg.Wait()
		// Two groups in turns would take twice as many as there are rounds.
		if n := st.updates.Load(); n > rounds*3/2 {
			t.Errorf("%d transactions", n)
		}
	})
}

func TestIDsGrow(t *testing.T) {
	var src idSource
	const workers, each = 8, 2000
	lists := make([][]string, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for range each {
				lists[w] = append(lists[w], src.next())
			}
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	for _, l := range lists {
		if !sort.StringsAreSorted(l) {
			t.Fatal("ids of one caller are not in order")
		}
		for _, id := range l {
			if len(id) != 26 || CheckID("id", id) != nil || seen[id] {
				t.Fatalf("id %q", id)
			}
			seen[id] = true
		}
	}
}

func TestIDsGrowWhenTheCounterOverflows(t *testing.T) {
	src := idSource{ms: uint64(time.Now().Add(time.Hour).UnixMilli()), hi: 0xffff, lo: ^uint64(0)}
	a, b := src.next(), src.next()
	if a >= b || src.hi == 0xffff {
		t.Fatalf("%s, then %s", a, b)
	}
}

func TestEncodeIDKeepsOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "a"))
		b := [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "b"))
		if bytes.Compare(a[:], b[:]) != strings.Compare(encodeID(a), encodeID(b)) {
			t.Fatalf("%x and %x became %s and %s", a, b, encodeID(a), encodeID(b))
		}
	})
}

func TestDueTimesAreReadWhenStale(t *testing.T) {
	at := time.Unix(1000, 0)
	d := dueTimes{kick: make(chan struct{}, 1)}
	if !d.stale(at) {
		t.Error("the first claim does not look")
	}
	d.begin()
	d.record(at, time.Time{})
	if d.stale(at.Add(dueRefresh-1)) || !d.stale(at.Add(dueRefresh)) || !d.stale(at.Add(-1)) {
		t.Error("a look is trusted for another time than dueRefresh, or while the clock steps back")
	}
	// A job that becomes known while another look is under way is not lost.
	soon := at.Add(dueRefresh / 2)
	d.begin()
	d.note(soon)
	d.record(at, at.Add(time.Hour))
	if d.stale(soon.Add(-1)) || !d.stale(soon) {
		t.Error("a note during a look is lost")
	}
	select {
	case <-d.kick:
	default:
		t.Error("an earlier job does not wake Run")
	}
	d.note(at.Add(time.Hour))
	select {
	case <-d.kick:
		t.Error("a later job wakes Run")
	default:
	}
	d.begin()
	d.record(at, time.Time{})
	if d.stale(soon) {
		t.Error("a note from before the look is kept after it")
	}
	if got := d.in(time.Minute); got != time.Minute {
		t.Errorf("nothing is due in %s", got)
	}
	d.note(at.Add(-time.Hour))
	if got := d.in(time.Minute); got > time.Millisecond {
		t.Errorf("what is overdue is due in %s", got)
	}
}

func TestFollowID(t *testing.T) {
	for id, want := range map[string]string{
		"a": "a~1", "a~1": "a~2", "a~9": "a~10", "x.1": "x.1~1",
	} {
		if got := followID(id); got != want {
			t.Errorf("followID(%s) = %s, want %s", id, got, want)
		}
	}
}

func TestLSN(t *testing.T) {
	for text, want := range map[string]LSN{
		"0/0": 0, "0/16B3748": 0x16B3748, "A/1": 0xA<<32 | 1, "ffffffff/FFFFFFFF": ^LSN(0), "10/0": 0x10 << 32,
	} {
		got, err := parseLSN("f", text)
		if err != nil || got != want {
			t.Errorf("parseLSN(%s) = %v, %v", text, got, err)
		}
		if back, err := parseLSN("f", got.String()); err != nil || back != got {
			t.Errorf("%s prints as %s", text, got)
		}
	}
	for _, text := range []string{"", "/", "0", "0/", "/0", "0/0/0", "g/0", "+1/0", "123456789/0", "0/123456789", " 0/0", "0x1/0", "-1/1"} {
		if got, err := parseLSN("f", text); err == nil {
			t.Errorf("parseLSN(%q) = %v, want an error", text, got)
		}
	}
}

func TestBackoffStaysInItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Options{BackoffBase: time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "base"))}
		o.BackoffMax = o.BackoffBase + time.Duration(rapid.Int64Range(0, int64(MaxDelay-time.Hour)).Draw(t, "more"))
		attempt := rapid.IntRange(1, MaxAttempts).Draw(t, "attempt")
		lo, hi := o.backoff(attempt, 0), o.backoff(attempt, 0.999999)
		if lo < o.BackoffBase/2 || hi > o.BackoffMax || lo > hi {
			t.Fatalf("backoff between %s and %s", lo, hi)
		}
		if next := o.backoff(attempt+1, 0); next < lo {
			t.Fatalf("the delay shrinks from %s to %s", lo, next)
		}
	})
}

// genRecord draws records as the queue makes them.
func genRecord(t *rapid.T) *record {
	stamp := func(label string) time.Time {
		v := rapid.Int64Range(0, 1<<52).Draw(t, label)
		if v == 0 {
			return time.Time{}
		}
		return time.UnixMicro(v).UTC()
	}
	text := func(label string) string { return rapid.StringN(0, 20, 40).Draw(t, label) }
	r := &record{Job: Job{
		ID: "id", Function: "f", Key: rapid.StringMatching(`[!-~]{0,20}`).Draw(t, "key"), Priority: rapid.IntRange(MinPriority, MaxPriority).Draw(t, "priority"),
		State: State(rapid.IntRange(int(Scheduled), int(Replayed)).Draw(t, "state")), Attempt: rapid.IntRange(0, 9).Draw(t, "attempt"),
		MaxAttempts: 9, CreatedAt: stamp("created"), RunAt: stamp("run_at"), StartedAt: stamp("started"), FinishedAt: stamp("finished"),
		Error: text("error"), CancelRequested: rapid.Bool().Draw(t, "cancel"),
		Payload: []byte(text("payload")),
	}, LastToken: text("token"), LockID: text("lock"), Place: rapid.IntRange(0, MaxBatch-1).Draw(t, "place"), Duplicates: rapid.Bool().Draw(t, "duplicates")}
	if rapid.Bool().Draw(t, "has result") {
		r.Result = []byte(text("result"))
	}
	if r.State == Replayed {
		r.ReplayedAs = "copy"
	}
	if r.State == Active {
		r.Lease = &Lease{Worker: text("worker"), Token: text("lease"), Begun: stamp("begun"), Until: stamp("until"), Duration: time.Minute}
	}
	if rapid.Bool().Draw(t, "has dedup") {
		r.Dedup = &Dedup{Strategy: UntilExecuted, Key: text("dedup"), TTL: time.Hour, RescheduleOnce: rapid.Bool().Draw(t, "r")}
	}
	for _, db := range []string{"a", "b"} {
		if rapid.Bool().Draw(t, "has "+db) {
			r.WALLocations = append(r.WALLocations, WALLocation{db, LSN(rapid.Uint64().Draw(t, "lsn"))})
		}
	}
	if rapid.Bool().Draw(t, "owned") {
		r.Owner = "0123456789abcdef"
	}
	if rapid.Bool().Draw(t, "traced") {
		r.Traceparent = "00-" + rapid.StringMatching(`1[0-9a-f]{31}-2[0-9a-f]{15}-0[0-3]`).Draw(t, "traceparent")
	}
	if rapid.Bool().Draw(t, "expires") {
		r.ExpiresAt = time.UnixMicro(rapid.Int64Range(1, 1<<53).Draw(t, "expires at")).UTC()
		r.DeadIfExpired = rapid.Bool().Draw(t, "dead if expired")
	}
	if rapid.Bool().Draw(t, "timeout") {
		r.Timeout = time.Second
		if r.Lease != nil {
			r.Lease.Deadline = stamp("deadline")
		}
	}
	if rapid.Bool().Draw(t, "keyed") {
		r.ConcurrencyKey = "tenant"
		if r.State == Active {
			r.slots = byte(rapid.IntRange(0, slotFunction|slotKey).Draw(t, "slots"))
		}
	}
	for _, v := range []*string{&r.Event, &r.Batch, &r.After} {
		if rapid.Bool().Draw(t, "named") {
			*v = "a-name"
		}
	}
	for range rapid.IntRange(0, MaxErrors).Draw(t, "errors") {
		r.Errors = append(r.Errors, AttemptError{Attempt: rapid.IntRange(0, 9).Draw(t, "failed attempt"), At: stamp("failed"), Worker: text("failed worker"), Text: "e" + text("failure")})
	}
	if rapid.Bool().Draw(t, "blobs") {
		r.Payload, r.PayloadBlob = nil, 600
		if r.Result != nil {
			r.Result, r.ResultBlob = nil, 700
		}
	}
	r.held, r.was = r.holds(), r.State
	return r
}

func TestRecordsComeBackAsTheyWere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := genRecord(t)
		b := r.encode()
		got, err := decodeRecord("id", b)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, r) {
			t.Fatalf("got  %+v\nwant %+v", got, r)
		}
		for _, n := range []int{0, 1, len(b) / 2, len(b) - 1} {
			if _, err := decodeRecord("id", b[:n]); err == nil {
				t.Fatalf("the first %d of %d bytes were accepted", n, len(b))
			}
		}
		if _, err := decodeRecord("id", append(slices.Clone(b), 0)); err == nil {
			t.Fatal("a byte too many was accepted")
		}
	})
}

func TestJobOfALaterVersionIsUnreadable(t *testing.T) {
	b := (&record{Job: Job{ID: "id", Function: "f", State: Queued, Payload: []byte("1")}}).encode()
	b[0]++
	var u *store.UnreadableError
	if _, err := decodeRecord("id", b); !errors.As(err, &u) || u.Reason != "it has version 2, this program reads 1" {
		t.Errorf("got %v", err)
	}
}

func TestTraceparent(t *testing.T) {
	const ids = "-0123456789abcdef0123456789abcdef-0123456789abcdef-"
	for header, want := range map[string]string{
		"00" + ids + "01": "00" + ids + "01", "00" + ids + "ff": "00" + ids + "03", "cc" + ids + "09-more": "00" + ids + "01", "00" + ids + "00": "00" + ids + "00",
		"": "", "00" + ids: "", "00" + ids + "0": "", "00" + ids + "011": "", "00" + ids + "01-more": "", "ff" + ids + "01": "", "cc" + ids + "09more": "",
		"00-0123456789ABCDEF0123456789abcdef-0123456789abcdef-01":      "",
		"00-00000000000000000000000000000000-0123456789abcdef-01":      "",
		"00-0123456789abcdef0123456789abcdef-0000000000000000-01":      "",
		"00-0123456789abcdef0123456789abcde--0123456789abcdef-01":      "",
		"00-0123456789abcdef0123456789abcdef-0123456789abcdef-01\r\nx": "",
	} {
		if got := Traceparent(header); got != want {
			t.Errorf("%q became %q, want %q", header, got, want)
		}
	}
}

// Sort keys decide the order of claims.
func TestSortKeysDecideTheOrderOfClaims(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		make := func(label string) *record {
			return &record{Job: Job{Function: "f", State: Queued,
				Priority: rapid.SampledFrom([]int{MinPriority, -1, 0, 1, MaxPriority}).Draw(t, label+" priority"),
				RunAt:    time.UnixMicro(rapid.Int64Range(0, 1<<53).Draw(t, label+" run_at"))}}
		}
		a, b := make("a"), make("b")
		want := b.Priority - a.Priority
		if want == 0 {
			want = a.RunAt.Compare(b.RunAt)
		}
		for i := range 2 {
			got := strings.Compare(a.entries()[i].SortKey, b.entries()[i].SortKey)
			if got < 0 != (want < 0) || got > 0 != (want > 0) {
				t.Fatalf("index %s: %+v and %+v compare as %d", a.entries()[i].Index, a.Job, b.Job, got)
			}
		}
	})
}

func FuzzDecodeRecord(f *testing.F) {
	r := &record{Job: Job{ID: "id", Function: "f", State: Active, Payload: []byte("1"), Lease: &Lease{Worker: "w", Token: "t", Until: time.UnixMicro(1)},
		Dedup: &Dedup{Strategy: UntilExecuting}, WALLocations: WALLocations{{"main", 1}}}}
	f.Add(r.encode())
	f.Add([]byte{})
	f.Add([]byte{1, 0})
	owned := *r
	owned.Owner = "somebody"
	owned.Event = "paid"
	owned.ConcurrencyKey, owned.slots = "tenant", slotFunction|slotKey
	owned.ExpiresAt, owned.DeadIfExpired, owned.Timeout = time.UnixMicro(3).UTC(), true, time.Second
	owned.Lease = &Lease{Worker: "w", Token: "t", Until: time.UnixMicro(1), Deadline: time.UnixMicro(2)}
	f.Add(owned.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord("id", b)
		if err != nil {
			return
		}
		again, err := decodeRecord("id", r.encode())
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Fatalf("%+v became %+v, %v", r, again, err)
		}
	})
}

// FuzzReadRecord: whatever is stored in a collection of the queue, it is read or said
// to be unreadable.
func FuzzReadRecord(f *testing.F) {
	all := []store.Collection{colJobs, colBlobs, colKeys, colLocks, colControl, colEvents, colSlots, colBatches}
	job := &record{Job: Job{ID: "id", Function: "f", State: Queued, Payload: []byte("1")}}
	f.Add(uint8(0), job.encode())
	f.Add(uint8(1), []byte("{}"))
	f.Add(uint8(2), []byte("id"))
	f.Add(uint8(3), codec.AppendString(appendStamp([]byte{lockVersion}, time.UnixMicro(1)), "id"))
	f.Add(uint8(4), settings{{name: "f", paused: time.UnixMicro(1).UTC()}, {name: "g", keyed: keyedUsed, limits: Limits{MaxRunning: 1, Rate: Rate{1, time.Second}}}}.encode())
	f.Add(uint8(7), (&Batch{Total: 3, Pending: 1, Failed: 2, CreatedAt: time.UnixMicro(1)}).encode())
	f.Add(uint8(5), encodeSubscriptions([]Subscription{{"f", time.UnixMicro(1)}, {"g", time.UnixMicro(2)}}))
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		c := all[int(which)%len(all)]
		s, err := ReadRecord(c, "key", b)
		var u *store.UnreadableError
		if err != nil && (!errors.As(err, &u) || u.Collection != c || u.Key != "key" || u.Reason == "") {
			t.Fatalf("%s: %v", c, err)
		}
		if _, err := store.CheckPut(c, "key", b, s.Entries); err == nil && u == nil && c != colBlobs && len(b) == 0 {
			t.Fatalf("%s: nothing can be read", c)
		} else if u == nil && err != nil && len(b) < store.MaxValueBytes {
			t.Fatalf("%s: %x could not have been written: %v", c, b, err)
		}
	})
}

func FuzzLSN(f *testing.F) {
	f.Add("0/16B3748")
	f.Add("ffffffff/0")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := parseLSN("f", text)
		if err != nil {
			return
		}
		if again, err := parseLSN("f", l.String()); err != nil || again != l {
			t.Fatalf("%q is %d, which prints as %s", text, l, l)
		}
	})
}
