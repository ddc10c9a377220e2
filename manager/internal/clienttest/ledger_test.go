package clienttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client"
)

func reserveCall(key, token string) api.BatchCall {
	return api.BatchCall{Op: api.OpReserve, Reserve: api.ReserveRequest{Key: key, Scope: "s", Token: token}}
}

func commitCall(key, token string, body []byte) api.BatchCall {
	return api.BatchCall{Op: api.OpCommit, Finish: api.FinishRequest{Key: key, Scope: "s", Token: token, Result: api.Result{Status: 200, Body: body}}}
}

// wantAnswers compares states, and codes of refusals.
func wantAnswers(t *testing.T, got []client.LedgerAnswer, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d answers, want %d", len(got), len(want))
	}
	for i := range got {
		state := got[i].Reply.State.String()
		var e *client.Error
		var f *api.FieldError
		if errors.As(got[i].Err, &e) {
			state = string(e.Code)
		} else if errors.As(got[i].Err, &f) {
			state = f.Field
		} else if got[i].Err != nil {
			state = got[i].Err.Error()
		}
		if state != want[i] {
			t.Errorf("call %d: %s, want %s", i, state, want[i])
		}
	}
}

// Every call has its own answer, in order.
func TestEachCallOfABatchHasItsAnswer(t *testing.T) {
	m := startManager(t)
	f := &faults{}
	l := m.client(f).Ledger()
	traced := reserveCall("t", "t1")
	traced.Trace = []api.Header{{Name: "traceparent", Value: "00-1-2-01"}}
	bad := reserveCall("b", "t1")
	bad.Trace = []api.Header{{Name: "A", Value: "b"}}
	waits := reserveCall("k", "t2")
	waits.Reserve.Wait = 1 << 40
	got, err := l.Batch(t.Context(), []api.BatchCall{
		reserveCall("k", "t1"), waits, reserveCall("", "t1"), traced, bad, {}, commitCall("k", "t1", []byte("done\xff")), reserveCall("k", "t2"),
		{Op: api.OpRelease, Release: api.ReleaseRequest{Key: "k", Scope: "s", Token: "t2"}},
		{Op: api.OpRenew, Reserve: api.ReserveRequest{Key: "t", Scope: "s", Token: "t1"}},
		{Op: api.OpUnknown, Reserve: api.ReserveRequest{Key: "t", Scope: "s", Token: "t1"}},
		{Op: api.OpReject, Finish: commitCall("t", "t1", nil).Finish},
		{Op: api.OpRelease, Release: api.ReleaseRequest{Key: "free", Scope: "s", Token: "t2"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	wantAnswers(t, got, "reserved", "pending", "invalid-key", "reserved", "headers", "op", "committed", "committed", "fenced", "reserved", "unknown", "rejected", "released")
	if string(got[7].Reply.Result.Body) != "done\xff" {
		t.Errorf("the recorded answer is %+v", got[7].Reply.Result)
	}
	if n := len(f.requests(api.PathBatch)); n != 1 {
		t.Errorf("%d requests", n)
	}
	if got, err := l.Batch(t.Context(), nil); err != nil || len(got) != 0 {
		t.Errorf("no calls: %v, %v", got, err)
	}
}

// TestLedgerBatchIsRepeated: what was cut off is repeated with the same tokens, and is the same calls.
func TestLedgerBatchIsRepeated(t *testing.T) {
	m := startManager(t)
	f := &faults{}
	f.set(map[string]int{api.PathBatch: 1}, map[string]int{api.PathBatch: 2})
	calls := []api.BatchCall{reserveCall("a", "t1"), commitCall("b", "t1", []byte("x")), reserveCall("c", "t1")}
	got, err := m.client(f).Ledger().Batch(t.Context(), calls)
	if err != nil {
		t.Fatal(err)
	}
	wantAnswers(t, got, "reserved", "committed", "reserved")
	if n := len(f.requests(api.PathBatch)); n != 4 {
		t.Errorf("%d requests", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f = &faults{answer: func(*http.Request) *http.Response { cancel(); return response(503, "text/plain", "away") }}
	if _, err := m.client(f).Ledger().Batch(ctx, calls); !errors.Is(err, context.Canceled) {
		t.Errorf("nobody answers: %v", err)
	}
}

// TestLedgerBatchIsCut: more calls than a batch holds, and larger ones, take more requests; recorded
// answers that do not fit beside others are asked for alone.
func TestLedgerBatchIsCut(t *testing.T) {
	m := startManager(t)
	f := &faults{}
	l := m.client(f).Ledger()
	var calls []api.BatchCall
	var want []string
	for i := range 300 {
		calls, want = append(calls, reserveCall(fmt.Sprint("k", i), "t1")), append(want, "reserved")
	}
	got, err := l.Batch(t.Context(), calls)
	if err != nil {
		t.Fatal(err)
	}
	wantAnswers(t, got, want...)
	if n := len(f.requests(api.PathBatch)); n != 3 {
		t.Errorf("%d requests for 300 calls", n)
	}
	body := bytes.Repeat([]byte("x"), 400_000)
	f = &faults{}
	l = m.client(f).Ledger()
	large := commitCall("k4", "t1", bytes.Repeat(body, 3)) // more than a batch, and than the manager records
	got, err = l.Batch(t.Context(), []api.BatchCall{
		commitCall("k0", "t1", body), commitCall("k1", "t1", body), commitCall("k2", "t1", body), large, reserveCall("k3", "t2"),
	})
	if err != nil {
		t.Fatal(err)
	}
	wantAnswers(t, got, "committed", "committed", "committed", "too-large", "pending")
	if n, alone := len(f.requests(api.PathBatch)), len(f.requests(api.PathCommit)); n != 3 || alone != 1 {
		t.Errorf("%d batches, %d calls alone", n, alone)
	}
	got, err = l.Batch(t.Context(), []api.BatchCall{reserveCall("k0", "t2"), reserveCall("k1", "t2"), reserveCall("k2", "t2"), reserveCall("k3", "t2")})
	if err != nil {
		t.Fatal(err)
	}
	wantAnswers(t, got, "committed", "committed", "committed", "pending")
	for i := range 3 {
		if !bytes.Equal(got[i].Reply.Result.Body, body) {
			t.Errorf("answer %d has %d bytes", i, len(got[i].Reply.Result.Body))
		}
	}
	if alone := len(f.requests(api.PathReserve)); alone != 1 {
		t.Errorf("%d reserves alone", alone)
	}
}

// TestLedgerAnswersThatAreNotOfAManager are never taken for one.
func TestLedgerAnswersThatAreNotOfAManager(t *testing.T) {
	m := startManager(t)
	one := api.AppendRawAnswer(nil, 200, 0, api.AppendRawReply(nil, api.StateReserved, 0, nil))
	for name, body := range map[string]string{
		"nothing": "", "JSON": `{"results":[]}`, "too few": string(api.AppendRawAnswers(nil, 1)) + string(one),
		"cut short": string(api.AppendRawAnswers(nil, 2)) + string(one), "no reply": string(api.AppendRawAnswers(nil, 2)) + string(one) + string(api.AppendRawAnswer(nil, 200, 0, nil)),
		"no problem": string(api.AppendRawAnswers(nil, 2)) + string(one) + string(api.AppendRawAnswer(nil, 409, 0, []byte("?"))),
	} {
		f := &faults{answer: func(*http.Request) *http.Response { return response(200, api.ContentTypeRaw, body) }}
		got, err := m.client(f).Ledger().Batch(t.Context(), []api.BatchCall{reserveCall("a", "t1"), reserveCall("b", "t1")})
		if err == nil || !strings.Contains(err.Error(), "not of a manager") || got != nil || len(f.seen) != 1 {
			t.Errorf("%s: %v, %v, %d requests", name, got, err, len(f.seen))
		}
	}
}
