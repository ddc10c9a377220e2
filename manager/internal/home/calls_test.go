package home_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/home"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
	"github.com/oncegate/oncegate/manager/managertest/calls"
)

// TestGlobalKey: the home decides about a key, whichever data centre is asked.
func TestGlobalKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, home.Options{})
	here, there := w.dcs["dc1"], w.dcs["dc2"]
	for _, away := range []bool{true, false} {
		at, other := "dc2", "home is away"
		if !away {
			at, other = "dc1", "home is here"
		}
		key := func(what string) string { return w.key(at, what+strings.ReplaceAll(other, " ", "-")) }

		k := key("commit")
		here.want("201 reserved", "reserve", reserve, k, "a")
		here.want("201 reserved", "reserve", reserve, k, "a")
		here.want("202 pending", "reserve", reserve, k, "b")
		there.want("202 pending", "reserve", reserve, k, "c")
		here.want("200 reserved", "renew", bare, k, "a")
		w.dcs[at].want("409 fenced", "commit", commit, k, "c")
		here.want("200 committed", "commit", commit, k, "a")
		here.want("200 committed", "commit", commit, k, "a")
		here.want("200 committed", "reserve", reserve, k, "b")
		there.want("200 committed", "reserve", reserve, k, "c")
		if a := there.JSON("POST", "/v1/ledger/reserve", fmt.Sprintf(reserve, k, "c")); gjson.Get(a.Body, "result.body").String() != "aGk=" {
			t.Errorf("%s: %s", other, a.Body)
		}

		k = key("reject")
		here.want("201 reserved", "reserve", reserve, k, "a")
		here.want("200 rejected", "reject", commit, k, "a")
		there.want("200 rejected", "reserve", reserve, k, "b")

		k = key("release")
		here.want("201 reserved", "reserve", reserve, k, "a")
		here.want("200 released", "release", bare, k, "a")
		here.want("200 released", "release", bare, k, "a")
		there.want("201 reserved", "reserve", reserve, k, "b")
		here.want("202 pending", "reserve", reserve, k, "c")
		there.want("200 released", "release", bare, k, "b")
		here.want("201 reserved", "reserve", reserve, k, "c")

		k = key("unknown")
		here.want("201 reserved", "reserve", reserve, k, "a")
		here.want("200 unknown", "unknown", bare, k, "a")
		here.want("409 outcome-unknown", "reserve", reserve, k, "b")
		there.want("409 outcome-unknown", "reserve", reserve, k, "c")
		here.want("200 committed", "commit", commit, k, "a")
		there.want("200 committed", "reserve", reserve, k, "c")

		k = key("mismatch")
		here.want("201 reserved", "reserve", `{"key":%q,"token":"a","durability":"global","fingerprint":"x"}`, k)
		here.want("422 fingerprint-mismatch", "reserve", `{"key":%q,"token":"b","durability":"global","fingerprint":"y"}`, k)
		there.want("422 fingerprint-mismatch", "reserve", `{"key":%q,"token":"b","durability":"global","fingerprint":"y"}`, k)
	}
}

// TestHomeAway: without the home a key is refused, at once and without a trace. A key whose home is here needs nobody.
func TestHomeAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, home.Options{})
	here, there := w.dcs["dc1"], w.dcs["dc2"]
	w.set(func(string, string) fault { return cut })
	k, own := w.key("dc2", "k"), w.key("dc1", "k")
	here.want("201 reserved", "reserve", reserve, own, "a")
	here.want("503 home-unavailable", "reserve", reserve, k, "a")
	if a := here.JSON("POST", "/v1/ledger/reserve", fmt.Sprintf(reserve, k, "a")); a.Header.Get("retry-after") == "" {
		t.Error("no Retry-After")
	}
	there.want("503 home-unavailable", "reserve", reserve, own, "b")
	w.set(nil)
	there.want("201 reserved", "reserve", reserve, k, "b")
	here.want("202 pending", "reserve", reserve, k, "a")

	// A commit is repeated until the home has it.
	k = w.key("dc2", "late")
	here.want("201 reserved", "reserve", reserve, k, "a")
	w.set(func(string, string) fault { return cut })
	here.want("503 home-unavailable", "commit", commit, k, "a")
	here.want("503 home-unavailable", "renew", bare, k, "a")
	here.want("503 home-unavailable", "release", bare, k, "a")
	here.want("503 home-unavailable", "unknown", bare, k, "a")
	w.set(nil)
	there.want("202 pending", "reserve", reserve, k, "b")
	here.want("200 committed", "commit", commit, k, "a")
	there.want("200 committed", "reserve", reserve, k, "b")
}

// TestLostAnswerOfHome: after a lost answer the same call settles what happened, and a release that says that the key is
// global frees it.
func TestLostAnswerOfHome(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, home.Options{})
	here, there := w.dcs["dc1"], w.dcs["dc2"]
	lose := func(string, string) fault { return lost }
	k := w.key("dc2", "repeated")
	w.set(lose)
	here.want("503 home-unanswered", "reserve", reserve, k, "a")
	w.set(nil)
	there.want("202 pending", "reserve", reserve, k, "b")
	here.want("201 reserved", "reserve", reserve, k, "a")
	w.set(lose)
	here.want("503 home-unanswered", "commit", commit, k, "a")
	w.set(nil)
	here.want("200 committed", "commit", commit, k, "a")
	there.want("200 committed", "reserve", reserve, k, "b")

	k = w.key("dc2", "released")
	w.set(lose)
	here.want("503 home-unanswered", "reserve", reserve, k, "a")
	here.want("503 home-unanswered", "release", reserve, k, "a")
	w.set(nil)
	here.want("200 released", "release", reserve, k, "a")
	there.want("201 reserved", "reserve", reserve, k, "b")
	here.want("409 fenced", "release", reserve, k, "a")
}

// whileAnswered sets what happens while the answers to the next calls are on their way, one thing for each call.
func (w *world) whileAnswered(things ...func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answered = func(string, string) {
		w.mu.Lock()
		var thing func()
		if len(things) > 0 {
			thing, things = things[0], things[1:]
		}
		w.mu.Unlock()
		if thing != nil {
			thing()
		}
	}
}

// TestLateAnswerOfHome: an outcome arrives while the home's answer about another attempt is on its way. Only the home
// knows which came first, so it is asked again.
func TestLateAnswerOfHome(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, home.Options{})
	here, there := w.dcs["dc1"], w.dcs["dc2"]
	arrives := func(k string, hlc uint64) {
		raw := (&api.Result{Status: 201, Body: []byte("hi")}).AppendRaw(nil)
		change := ledger.FeedChange{Origin: "dc2", Key: k, Token: fmt.Sprint("b", hlc), State: api.StateCommitted, HLC: hlc, ExpiresIn: 30 * time.Second, Result: raw} // so short that a later one of the same home is no second run
		if done, err := here.feed.Import(t.Context(), []ledger.FeedChange{change}, nil); err != nil || done.New != 1 {
			t.Errorf("%+v, %v", done, err)
		}
	}
	state := func(k string) string {
		e, err := here.ledger.Get(t.Context(), "", k)
		if err != nil {
			t.Fatal(err)
		}
		return e.State.String() + " " + e.Home
	}
	for _, op := range []struct{ name, body, ok, late string }{{"reserve", reserve, "201 reserved", "200 committed"}, {"renew", bare, "200 reserved", "409 fenced"}} {
		begin := func(name string) (k string) {
			k = w.key("dc2", op.name+name)
			if op.name == "renew" {
				here.want("201 reserved", "reserve", reserve, k, "a")
			}
			return k
		}

		// The attempt lost its key after the answer.
		k := begin("lost")
		w.whileAnswered(func() {
			there.want("200 released", "release", bare, k, "a")
			there.want("201 reserved", "reserve", reserve, k, "b1")
			there.want("200 committed", "commit", commit, k, "b1")
			if op.name == "renew" {
				if err := here.ledger.ReleaseFollowed(t.Context(), &api.ReleaseRequest{Key: k, Token: "a"}); err != nil {
					t.Error(err)
				}
			}
			arrives(k, 1)
		})
		here.want(op.late, op.name, op.body, k, "a")
		if got := state(k); got != "committed " {
			t.Errorf("after %s the key is %q here", op.name, got)
		}

		// It has the key: the outcome was of before.
		k = begin("kept")
		forget := func() {
			if op.name == "renew" {
				if err := here.ledger.ReleaseFollowed(t.Context(), &api.ReleaseRequest{Key: k, Token: "a"}); err != nil {
					t.Error(err)
				}
			}
		}
		w.whileAnswered(func() { forget(); arrives(k, 1) })
		here.want(op.ok, op.name, op.body, k, "a")
		if got := state(k); got != "pending dc2" {
			t.Errorf("after %s the key is %q here", op.name, got)
		}
		here.want("200 committed", "commit", commit, k, "a")

		// The home cannot be asked again, and has made the first call.
		k = begin("cut")
		w.whileAnswered(func() { forget(); arrives(k, 1); w.set(func(string, string) fault { return cut }) })
		here.want("503 home-unanswered", op.name, op.body, k, "a")
		w.set(nil)
		w.whileAnswered()

		// There is doubt each time.
		k = begin("endless")
		w.whileAnswered(func() { forget(); arrives(k, 1) }, func() { arrives(k, 2) }, func() { arrives(k, 3) })
		here.want("503 home-unanswered", op.name, op.body, k, "a")
		w.whileAnswered()
	}
}

// TestLateOutcomesGoHome: an outcome, a renewal and an unknown outcome that say that the key is global go to its home when
// nothing is noted here any more. This data centre recording them by itself would let the home run the key again.
func TestLateOutcomesGoHome(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, home.Options{})
	here, there := w.dcs["dc1"], w.dcs["dc2"]
	const late = `{"key":%q,"token":%q,"durability":"global","result":{"status":201,"body":"aGk="}}`
	begin := func(name, token string) (k string) {
		k = w.key("dc2", name)
		here.want("201 reserved", "reserve", reserve, k, token)
		if err := here.ledger.ReleaseFollowed(t.Context(), &api.ReleaseRequest{Key: k, Token: token}); err != nil { // as if its time were over
			t.Fatal(err)
		}
		return k
	}
	nothing := func(k string) {
		t.Helper()
		if a := here.Site.Do("GET", "/v1/ledger/entries/"+k, "", ""); a.Status != 404 {
			t.Errorf("dc1 recorded it by itself: %s", a.Body)
		}
	}
	for op, want := range map[string]string{"commit": "committed", "reject": "rejected"} {
		k := begin(op, "a")
		here.want("200 "+want, op, late, k, "a")
		nothing(k)
		there.want("200 "+want, "reserve", reserve, k, "b")

		// The home gave the key to another attempt.
		k = begin("lost-"+op, "a")
		there.want("200 released", "release", bare, k, "a")
		there.want("201 reserved", "reserve", reserve, k, "b")
		here.want("409 fenced", op, late, k, "a")
		nothing(k)
		there.want("200 "+want, op, late, k, "b")
		change := ledger.FeedChange{Origin: "dc2", Key: k, Token: "b", State: api.StateCommitted, HLC: 1, ExpiresIn: time.Hour, Result: (&api.Result{Status: 201}).AppendRaw(nil)}
		if _, err := here.feed.Import(t.Context(), []ledger.FeedChange{change}, nil); err != nil {
			t.Fatal(err)
		}
		here.want("409 fenced", op, late, k, "a")
		if list, _, err := views.Conflicts(t.Context(), here.ledger, 10, ""); err != nil || len(list) != 0 {
			t.Errorf("conflicts of a global key: %v, %v", list, err)
		}

		k = begin("cut-"+op, "a")
		w.set(func(string, string) fault { return cut })
		here.want("503 home-unavailable", op, late, k, "a")
		w.set(nil)
		nothing(k)

		k = begin("stream-"+op, "a")
		code, _ := api.ParseOp(op)
		here.wantOnStream("200 "+want, calls.Call{Op: code, Message: (&api.FinishRequest{Key: k, Token: "a", Durability: api.DurabilityGlobal, Result: api.Result{Status: 200}}).AppendRaw(nil)})
		nothing(k)
		there.want("200 "+want, "reserve", reserve, k, "b")
	}
	const global = `{"key":%q,"token":%q,"durability":"global"}`
	k := begin("renew", "a")
	here.want("200 reserved", "renew", global, k, "a")
	here.want("200 committed", "commit", commit, k, "a")
	there.want("200 committed", "reserve", reserve, k, "b")
	k = begin("unknown", "a")
	here.want("200 unknown", "unknown", global, k, "a")
	nothing(k)
	there.want("409 outcome-unknown", "reserve", reserve, k, "b")

	// The home itself takes late outcomes.
	k = w.key("dc1", "own")
	here.want("200 committed", "commit", late, k, "a")
}

// TestFencedReleaseEndsTheReservation: when the home no longer has a reservation, this data centre takes another attempt's outcome.
func TestFencedReleaseEndsTheReservation(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, home.Options{})
	here, there := w.dcs["dc1"], w.dcs["dc2"]
	k := w.key("dc2", "k")
	here.want("201 reserved", "reserve", reserve, k, "a")
	there.want("200 released", "release", bare, k, "a") // a copy of the release arrived first
	there.want("201 reserved", "reserve", reserve, k, "b")
	here.want("409 fenced", "release", bare, k, "a")
	if a := here.Site.Do("GET", "/v1/ledger/entries/"+k, "", ""); a.Status != 404 {
		t.Errorf("dc1 still notes the attempt: %s", a.Body)
	}
}

// TestStreamCallsHomes: calls on a stream about which another data centre decides are made there, beside calls that are made here.
func TestStreamCallsHomes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, home.Options{})
	here, there := w.dcs["dc1"], w.dcs["dc2"]
	k, own := w.key("dc2", "k"), w.key("dc1", "k")
	ran, free, runs := w.key("dc2", "ran"), w.key("dc2", "free"), w.key("dc2", "runs")
	for _, key := range []string{ran, free, runs} {
		here.want("201 reserved", "reserve", reserve, key, "a")
	}
	call := func(op api.Op, key string, d api.Durability) calls.Call {
		return calls.Call{Op: op, Message: (&api.ReserveRequest{Key: key, Token: "a", Durability: d}).AppendRaw(nil)}
	}
	here.wantOnStream("201 reserved,201 reserved,201 reserved,200 committed,200 reserved,200 released",
		call(api.OpReserve, k, api.DurabilityGlobal), call(api.OpReserve, own, api.DurabilityGlobal), call(api.OpReserve, "local", api.DurabilityLocal),
		calls.Call{Op: api.OpCommit, Message: (&api.FinishRequest{Key: ran, Token: "a", Result: api.Result{Status: 200}}).AppendRaw(nil)},
		call(api.OpRenew, runs, api.DurabilityLocal),
		calls.Call{Op: api.OpRelease, Message: (&api.ReleaseRequest{Key: free, Token: "a", Durability: api.DurabilityGlobal}).AppendRaw(nil)})
	there.want("202 pending", "reserve", reserve, k, "b")
	there.want("200 committed", "reserve", reserve, ran, "b")
	there.want("202 pending", "reserve", reserve, runs, "b")
	there.want("201 reserved", "reserve", reserve, free, "b")
}

// wantOnStream makes calls that are sent together on a stream, and compares statuses and states.
func (d *dc) wantOnStream(want string, all ...calls.Call) {
	d.w.t.Helper()
	st, err := calls.Open(d.w.t.Context(), d.Base)
	if err != nil {
		d.w.t.Fatal(err)
	}
	defer st.Close()
	replies, err := st.Do(all...)
	if err != nil {
		d.w.t.Fatal(err)
	}
	var got []string
	for _, r := range replies {
		var reply api.ReserveReply
		word := string(r.Body)
		if r.Status < 300 && reply.ParseRaw(r.Body) == nil {
			word = reply.State.String()
		}
		got = append(got, fmt.Sprint(r.Status, " ", word))
	}
	if got := strings.Join(got, ","); got != want {
		d.w.t.Errorf("%s: %s, want %s", d.name, got, want)
	}
}

// TestWaitAtHome: a reserve that may wait waits at the home.
func TestWaitAtHome(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, home.Options{})
	here, there := w.dcs["dc1"], w.dcs["dc2"]
	k := w.key("dc2", "k")
	there.want("201 reserved", "reserve", reserve, k, "a")
	answer := make(chan httpdtest.Answer, 1)
	go func() {
		a, err := here.Try(t.Context(), "POST", "/v1/ledger/reserve", "application/json",
			fmt.Sprintf(`{"key":%q,"token":"b","durability":"global","wait_ms":30000}`, k))
		if err != nil {
			t.Error(err)
		}
		answer <- a
	}()
	there.Eventually("a waiter at the home", func() bool {
		s, err := there.ledger.Stats(t.Context())
		return err == nil && s.Waiters == 1
	})
	there.want("200 committed", "commit", commit, k, "a")
	if a := <-answer; a.Status != 200 || gjson.Get(a.Body, "result.body").String() != "aGk=" {
		t.Errorf("%d %s", a.Status, a.Body)
	}
}
