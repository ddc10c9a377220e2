package server

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// rawItem is an item of a batch in the raw form.
func rawItem(op api.Op, message []byte) []byte { return api.AppendRawItem(nil, op, nil, message) }

// rawBatch is a batch in the raw form.
func rawBatch(items ...[]byte) []byte {
	b := api.AppendRawBatch(nil, len(items))
	for _, it := range items {
		b = append(b, it...)
	}
	return b
}

func rawReserve(key, token string) []byte {
	return rawItem(api.OpReserve, (&api.ReserveRequest{Key: key, Token: token}).AppendRaw(nil))
}

func rawCommit(key, token, body string) []byte {
	r := api.FinishRequest{Key: key, Token: token, Result: api.Result{Status: 200, Body: []byte(body)}}
	return rawItem(api.OpCommit, r.AppendRaw(nil))
}

// Each item has the answer that it would have by itself.
func TestBatchItemsAreAnsweredAsAlone(t *testing.T) {
	s := newSite(t, siteOptions{})
	a := s.Do("POST", api.PathBatch, api.ContentTypeRaw, string(rawBatch(
		rawReserve("k", "t1"), rawReserve("k", "t2"), rawCommit("k", "t1", "done"), rawReserve("k", "t2"), rawReserve("other", ""),
		rawItem(api.OpRelease, (&api.ReleaseRequest{Key: "k", Token: "t2"}).AppendRaw(nil)),
		rawItem(77, nil), rawItem(api.OpRenew, []byte("?")),
	)))
	if a.Status != 200 || a.Header.Get("content-type") != api.ContentTypeRaw {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	answers, err := api.ViewRawAnswers(nil, []byte(a.Body))
	if err != nil || len(answers) != 8 {
		t.Fatalf("%d answers, %v", len(answers), err)
	}
	for i, want := range []struct {
		status, after int
		state         api.State
		code          api.Code
	}{
		{201, 0, api.StateReserved, ""}, {202, 1, api.StatePending, ""}, {200, 0, api.StateCommitted, ""}, {200, 0, api.StateCommitted, ""},
		{400, 0, 0, api.CodeInvalidRequest}, {409, 0, 0, api.CodeFenced}, {400, 0, 0, api.CodeInvalidRequest}, {400, 0, 0, api.CodeInvalidRequest},
	} {
		got := answers[i]
		var reply api.ReserveReply
		var p api.Problem
		err := p.ParseJSON(got.Body)
		if want.code == "" {
			err = reply.ParseRaw(got.Body)
		}
		if err != nil || got.Status != want.status || got.RetryAfterSeconds != want.after || reply.State != want.state || p.Code != want.code {
			t.Errorf("item %d: %+v: %v %v %v", i, got, reply.State, p, err)
		}
		if i == 3 && string(reply.Result.Body) != "done" {
			t.Errorf("recorded answer %+v", reply.Result)
		}
	}
}

// direct answers a request without a connection.
func direct(t *testing.T, s *Server, path, contentType string, body []byte) *httpd.Response {
	t.Helper()
	w := new(httpd.Response)
	s.Do(t.Context(), &httpd.Direct{
		Method: "POST", Path: path, Headers: []api.Header{{Name: "content-type", Value: contentType}}, Body: body,
	}, w)
	return w
}

// newDirect is a server without a network, on a volatile store whose clock stands still.
func newDirect(t *testing.T, o ledger.Options) *Server {
	t.Helper()
	at := time.Now()
	st := mem.New(mem.Options{Clock: func() time.Time { return at }})
	t.Cleanup(func() { _ = st.Close() })
	l, err := ledger.New(st, o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{Options: httpd.Options{Version: "test", Logger: slog.New(slog.DiscardHandler)}}, LedgerRoutes(l, nil, Reach{}))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestBatchAnswersAsItsCalls: in both forms the answer to an item is that of the single call.
func TestBatchAnswersAsItsCalls(t *testing.T) {
	type item struct{ op, fields string }
	const result = `"result":{"status":201,"headers":[["a","b"]],"body":"aGk="}`
	items := []item{
		{"reserve", `"key":"k","token":"t1","fingerprint":"f","pending_ttl_ms":1000,"unknown_ttl_ms":0`},
		{"reserve", `"key":"k","token":"t2","wait_ms":0`},
		{"reserve", `"key":"k","token":"t2","fingerprint":"g"`},
		{"commit", `"key":"k","token":"t2",` + result},
		{"renew", `"key":"k","token":"t1","pending_ttl_ms":70000`},
		{"renew", `"key":"k","token":"t1","wait_ms":70000`},
		{"commit", `"key":"k","token":"t1",` + result},
		{"commit", `"key":"k","token":"t1",` + result},
		{"reject", `"key":"k","token":"t1",` + result},
		{"reserve", `"key":"k","token":"t2"`},
		{"release", `"key":"k","token":"t1"`},
		{"release", `"key":"l","token":"t1"`},
		{"reserve", `"key":"l","token":"t1"`},
		{"unknown", `"key":"l","token":"t1"`},
		{"reserve", `"key":"l","token":"t2"`},
		{"reject", `"key":"l","token":"t1","ttl_ms":5,"result":{"status":400}`},
		{"reserve", `"key":"l","token":"t2"`},
		{"reserve", `"key":"","token":"t2"`},
		{"reserve", `"key":"l","token":2`},
		{"reserve", `"key":"l"`},
		{"reserve", `"key":"l","key":"l","token":"t"`},
		{"reserve", `"key":"l","token":"t","result":{}`},
		{"commit", `"key":"l","token":"t"`},
		{"commit", `"key":"l","token":"t","result":{"status":99}`},
		{"commit", `"key":"l","token":"t","result":{"status":200,"headers":[["A","b"]]}`},
		{"commit", `"key":"l","token":"t","result":{"status":200,"headers":[["a",1]]}`},
		{"release", `"key":"l","token":"t","fingerprint":"f"`},
		{"unknown", `"key":"l","token":"t","unknown_ttl_ms":-1`},
	}
	batched, single := newDirect(t, ledger.Options{}), newDirect(t, ledger.Options{})
	var all []string
	for _, it := range items {
		all = append(all, `{"op":"`+it.op+`",`+it.fields+`,"headers":[["traceparent","00-1-2-3"]]}`)
	}
	w := direct(t, batched, api.PathBatch, api.ContentTypeJSON, []byte(`{"items":[`+strings.Join(all, ",")+`]}`))
	var got struct {
		Results []map[string]any
	}
	if err := json.Unmarshal(w.Body, &got); err != nil || w.Status != 200 || len(got.Results) != len(items) {
		t.Fatalf("%d %v %s", w.Status, err, w.Body)
	}
	for i, it := range items {
		w := direct(t, single, "/v1/ledger/"+it.op, api.ContentTypeJSON, []byte("{"+it.fields+"}"))
		var want map[string]any
		if err := json.Unmarshal(w.Body, &want); err != nil {
			t.Fatal(err)
		}
		want["status"] = float64(w.Status)
		if w.RetryAfter > 0 {
			want["retry_after"] = float64(w.RetryAfter)
		}
		if !reflect.DeepEqual(got.Results[i], want) {
			t.Errorf("%s %s:\n%v, by itself\n%v", it.op, it.fields, got.Results[i], want)
		}
	}
}

// What is wrong with the batch as a whole is answered before any of it ran.
func TestBadBatchIsRefusedBeforeItRuns(t *testing.T) {
	s := newDirect(t, ledger.Options{})
	const one = `{"op":"reserve","key":"k","token":"t"}`
	many := func(n int) string { return `{"items":[` + strings.Repeat(one+",", n-1) + one + `]}` }
	raw := func(n int) string {
		return string(rawBatch(slices.Repeat([][]byte{rawReserve("k", "t")}, n)...))
	}
	large := rawBatch(rawReserve("k", "t"), rawCommit("k", "t", strings.Repeat("x", api.MaxBatchBytes)))
	for name, c := range map[string]struct {
		contentType, body string
		status            int
		want              string
	}{
		"nothing":        {api.ContentTypeJSON, ``, 400, "must be one valid JSON value"},
		"no object":      {api.ContentTypeJSON, `[` + one + `]`, 400, "must be a JSON object"},
		"no items":       {api.ContentTypeJSON, `{}`, 400, "items: must be 1 to 128"},
		"empty":          {api.ContentTypeJSON, `{"items":[]}`, 400, "items: must be 1 to 128"},
		"no array":       {api.ContentTypeJSON, `{"items":{"a":` + one + `}}`, 400, "must be an array of 1 to 128 calls"},
		"another member": {api.ContentTypeJSON, `{"items":[` + one + `],"atomic":true}`, 400, "atomic: unknown field"},
		"twice":          {api.ContentTypeJSON, `{"items":[` + one + `],"items":[]}`, 400, "items: given twice"},
		"cut short":      {api.ContentTypeJSON, `{"items":[` + one, 400, "must be one valid JSON value"},
		"deep":           {api.ContentTypeJSON, `{"items":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, 400, "nested at most 64 deep"},
		"too many":       {api.ContentTypeJSON, many(129), 413, "at most 128 items"},
		"too large":      {api.ContentTypeJSON, many(1) + strings.Repeat(" ", api.MaxBatchBytes), 413, "at most 1048576 bytes"},
		"raw nothing":    {api.ContentTypeRaw, ``, 400, "raw message"},
		"raw empty":      {api.ContentTypeRaw, "\x01B\x00", 400, "items: must be 1 to 128"},
		"raw too many":   {api.ContentTypeRaw, raw(129), 413, "items: must be 1 to 128"},
		"raw too large":  {api.ContentTypeRaw, string(large), 413, "at most 1048576 bytes"},
		"raw cut short":  {api.ContentTypeRaw, raw(2)[:len(raw(2))-1], 400, "raw message: message"},
		"raw more":       {api.ContentTypeRaw, raw(2) + "x", 400, "raw message"},
		"another form":   {"text/plain", many(1), 415, "must be application/json or"},
	} {
		w := direct(t, s, api.PathBatch, c.contentType, []byte(c.body))
		if w.Status != c.status || !strings.Contains(string(w.Body), c.want) || w.ContentType != api.ContentTypeProblem {
			t.Errorf("%s: %d %s; want %d, %s", name, w.Status, w.Body, c.status, c.want)
		}
	}
	if w := direct(t, s, api.PathReserve, api.ContentTypeJSON, []byte(`{"key":"k","token":"t2"}`)); w.Status != 201 {
		t.Errorf("something of a refused batch was done: %d %s", w.Status, w.Body)
	}
	for contentType, body := range map[string]string{api.ContentTypeJSON: many(128), api.ContentTypeRaw: raw(128)} {
		if w := direct(t, s, api.PathBatch, contentType, []byte(body)); w.Status != 200 {
			t.Errorf("as many as there may be: %d %s", w.Status, w.Body)
		}
	}
}

// TestBadItemsOfABatch: a bad item is its own mistake.
func TestBadItemsOfABatch(t *testing.T) {
	s := newDirect(t, ledger.Options{})
	long := strings.Repeat(`["x-request-id","v"],`, 9)
	for _, c := range []struct{ item, want string }{
		{`7`, "item: \"7\": must be a JSON object"},
		{`null`, "must be a JSON object"},
		{`[]`, "must be a JSON object"},
		{`{"key":"k","token":"t"}`, "op: must be reserve, commit, reject, release, renew or unknown"},
		{`{"op":"resolve","key":"k","token":"t"}`, `op: \"resolve\": must be reserve`},
		{`{"op":"invalid","key":"k","token":"t"}`, "must be reserve"},
		{`{"op":1,"key":"k","token":"t"}`, "op: \\\"1\\\": must be reserve"},
		{`{"op":"reserve","op":"reserve","key":"k","token":"t"}`, "op: given twice"},
		{`{"op":"reserve","key":"k","token":"t","headers":{}}`, "headers: must be an array of [name, value]"},
		{`{"op":"reserve","key":"k","token":"t","headers":[["a"]]}`, "must be an array of [name, value]"},
		{`{"op":"reserve","key":"k","token":"t","headers":[["A","b"]]}`, "header names must be lower-case"},
		{`{"op":"reserve","key":"k","token":"t","headers":[["a","\n"]]}`, "must not hold control characters"},
		{`{"op":"reserve","key":"k","token":"t","headers":[` + long + `["a","b"]]}`, "at most 9 headers of 1536 bytes"},
		{`{"op":"reserve","key":"k","token":"t","headers":[["a","` + strings.Repeat("x", 1536) + `"]]}`, "at most 9 headers of 1536 bytes"},
	} {
		w := direct(t, s, api.PathBatch, api.ContentTypeJSON, []byte(`{"items":[{"op":"reserve","key":"n","token":"t"},`+c.item+`,{"op":"release","key":"n","token":"t"}]}`))
		var got struct {
			Results []struct {
				Status              int
				State, Code, Detail string
			}
		}
		if err := json.Unmarshal(w.Body, &got); err != nil || w.Status != 200 || len(got.Results) != 3 {
			t.Fatalf("%s: %d %v %s", c.item, w.Status, err, w.Body)
		}
		r := got.Results
		if detail, _ := json.Marshal(r[1].Detail); r[1].Status != 400 || r[1].Code != "invalid-request" || !strings.Contains(string(detail)+r[1].Detail, c.want) {
			t.Errorf("%s: %+v; want %s", c.item, r[1], c.want)
		}
		if r[0].Status != 201 || r[2].Status != 200 || r[2].State != "released" {
			t.Errorf("%s: its neighbours: %+v", c.item, r)
		}
	}
}

// Answers that do not fit into that of the batch are asked for alone; smaller ones
// after them come along.
func TestLargeAnswersAreAskedForAlone(t *testing.T) {
	s := newDirect(t, ledger.Options{MaxResultBytes: 2 << 20})
	for i, size := range []int{700_000, 400_000, 300_000, api.MaxBatchReplyBytes + 1} {
		req := api.FinishRequest{Key: strconv.Itoa(i), Token: "t", Result: api.Result{Status: 200, Body: make([]byte, size)}}
		if w := direct(t, s, api.PathCommit, api.ContentTypeRaw, req.AppendRaw(nil)); w.Status != 200 {
			t.Fatalf("%d %s", w.Status, w.Body)
		}
	}
	w := direct(t, s, api.PathBatch, api.ContentTypeRaw, rawBatch(rawReserve("0", "x"), rawReserve("1", "x"), rawReserve("2", "x"), rawReserve("3", "x"), rawReserve("4", "x")))
	answers, err := api.ViewRawAnswers(nil, w.Body)
	if err != nil || len(answers) != 5 {
		t.Fatalf("%d answers, %v", len(answers), err)
	}
	for i, want := range []int{200, 503, 200, 503, 201} {
		var p api.Problem
		if answers[i].Status != want || want == 503 && (p.ParseJSON(answers[i].Body) != nil || p.Code != api.CodeAskAlone) {
			t.Errorf("item %d: %d, %v", i, answers[i].Status, p)
		}
	}
	if w = direct(t, s, api.PathReserve, api.ContentTypeRaw, (&api.ReserveRequest{Key: "3", Token: "x"}).AppendRaw(nil)); w.Status != 200 || len(w.Body) < api.MaxBatchReplyBytes {
		t.Errorf("asked alone: %d, %d bytes", w.Status, len(w.Body))
	}
}

// broken is a store whose writes fail for no reason that it names.
type broken struct{ store.Store }

func (broken) Update(context.Context, func(store.Tx) error) error { return errors.New("broken") }

// TestFailuresNameTheRequest: the line in the log about a call that failed inside the manager has
// the headers of the request that caused it: an item's own, or those of the single call.
func TestFailuresNameTheRequest(t *testing.T) {
	s := newSite(t, siteOptions{store: broken{mem.New(mem.Options{})}})
	body := `{"items":[{"op":"reserve","key":"a","token":"t","headers":[["traceparent","00-aa"],["x-request-id","item"]]},{"op":"reserve","key":"b","token":"t"}]}`
	if a := s.Do("POST", api.PathBatch, "", body, "x-request-id", "batch"); a.Status != 200 || strings.Count(a.Body, `"status":500`) != 2 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if a := s.Do("POST", api.PathReserve, "", `{"key":"a","token":"t"}`, "traceparent", "00-bb"); a.Status != 500 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	for _, want := range []string{"error=broken x-request-id=item traceparent=00-aa", "error=broken x-request-id=batch\n", "error=broken traceparent=00-bb"} {
		if !strings.Contains(s.log.String(), want) {
			t.Errorf("%q is not in the log: %s", want, s.log)
		}
	}
}
