package server

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// contentOf gives a request a content-type, unless that is empty.
func contentOf(contentType string, d httpd.Direct) *httpd.Direct {
	if contentType != "" {
		d.Headers = []api.Header{{Name: "content-type", Value: contentType}}
	}
	return &d
}

// short is a TTL that keeps a small window from being full for long.
const short = time.Millisecond

// FuzzRequests: whatever a stranger sends, the answer is a proper one and never
// an internal error.
func FuzzRequests(f *testing.F) {
	raw := api.FinishRequest{Key: "k", Token: "t", Result: api.Result{Status: 200, Body: []byte("x")}}
	f.Add("POST", api.PathReserve, "", "application/json", []byte(`{"key":"k","token":"t"}`))
	f.Add("POST", api.PathCommit, "", api.ContentTypeRaw, raw.AppendRaw(nil))
	f.Add("POST", api.PathReject, "", "", raw.AppendJSON(nil))
	f.Add("POST", api.PathRelease, "", "text/plain", []byte(`{"key":"k","token":"t"}`))
	f.Add("GET", "/v1/ledger/entries/a%2Fb", "scope=%20", "", []byte{})
	f.Add("GET", "/v1/ledger/entries", "state=pending&limit=2&cursor=cDAwMDAwMDAwMC8xOnNr", "", []byte{})
	f.Add("DELETE", "/v1/ledger/entries/%zz", "%", "", []byte{})
	f.Add("GET", "/v1/ledger/stats", "", "", []byte{})
	f.Add("GET", "", "a=b", "", []byte{})
	f.Add("OPTIONS", "*", "", "", []byte{})
	f.Add("POST", api.PathBatch, "", api.ContentTypeRaw, rawBatch(rawReserve("k", "t"), rawCommit("k", "t", "x"), rawItem(9, nil)))
	f.Add("POST", api.PathBatch, "", "", []byte(`{"items":[{"op":"reserve","key":"k","token":"t"},{"op":"commit","key":"k","token":"t","result":{"status":200}},{"op":"renew"},7]}`))
	st := mem.New(mem.Options{})
	// No waits: a request that may wait would hold up the fuzzer.
	l, err := ledger.New(st, ledger.Options{MaxWait: -1, MaxEntries: 50, PendingTTL: short, CommittedTTL: short, RejectedTTL: short})
	if err != nil {
		f.Fatal(err)
	}
	s, err := New(Options{Options: httpd.Options{Version: "v", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}}, LedgerRoutes(l, nil, Reach{}))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, method, path, query, contentType string, body []byte) {
		var w httpd.Response
		s.Do(t.Context(), contentOf(contentType, httpd.Direct{Method: method, Path: path, Query: query, Body: body}), &w)
		if w.Status < 200 || w.Status >= 600 || w.Status == 500 {
			t.Fatalf("%s %s?%s: %d %s", method, path, query, w.Status, w.Body)
		}
		if path == api.PathBatch && w.Status == 200 {
			checkBatch(t, body, &w)
		} else if w.ContentType == api.ContentTypeRaw {
			if err := new(api.ReserveReply).ParseRaw(w.Body); err != nil {
				t.Fatal(err)
			}
		} else if !isJSON(w.Body) {
			t.Fatalf("not JSON: %s", w.Body)
		}
		if n, err := st.Len(context.Background(), "ledger", ""); err != nil || n > 57 { // late outcomes take an eighth and one more
			t.Fatalf("%d entries, %v", n, err)
		}
	})
}

// checkBatch makes sure that there is a proper answer to each item.
func checkBatch(t *testing.T, request []byte, w *httpd.Response) {
	type answer struct {
		status int
		body   []byte
	}
	var answers []answer
	items := 0
	if w.ContentType == api.ContentTypeRaw {
		asked, err := api.ViewRawBatch(nil, request)
		got, err2 := api.ViewRawAnswers(nil, w.Body)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		items = len(asked)
		for _, a := range got {
			if a.Status < 300 {
				if err := new(api.ReserveReply).ParseRaw(a.Body); err != nil {
					t.Fatal(err)
				}
				a.Body = []byte("{}")
			}
			answers = append(answers, answer{a.Status, a.Body})
		}
	} else {
		items = len(gjson.GetBytes(request, "items").Array())
		for _, a := range gjson.GetBytes(w.Body, "results").Array() {
			answers = append(answers, answer{int(a.Get("status").Int()), []byte(a.Raw)})
		}
	}
	if len(answers) != items || items == 0 {
		t.Fatalf("%d answers to %d items", len(answers), items)
	}
	for _, a := range answers {
		if a.status < 200 || a.status >= 600 || a.status == 500 || !isJSON(a.body) {
			t.Fatalf("an item is answered %d %s", a.status, a.body)
		}
		if p := new(api.Problem); a.status >= 400 && (p.ParseJSON(a.body) != nil || p.Status != a.status || p.Code == "") {
			t.Fatalf("no problem: %s", a.body)
		}
	}
}

// FuzzBatch: as FuzzRequests, for batches alone.
func FuzzBatch(f *testing.F) {
	f.Add(true, rawBatch(rawReserve("k", "t"), rawCommit("k", "t", "x"), rawItem(api.OpRelease, (&api.ReleaseRequest{Key: "k", Token: "t"}).AppendRaw(nil))))
	f.Add(true, rawBatch(api.AppendRawItem(nil, api.OpUnknown, [][2]string{{"traceparent", "00-1"}}, (&api.ReserveRequest{Key: "k", Token: "t"}).AppendRaw(nil)), rawItem(0, nil)))
	for _, items := range []string{
		`{"op":"reserve","key":"k","token":"t","unknown_ttl_ms":0,"headers":[["a","b"]]}`,
		`{"op":"commit","key":"k","token":"t","result":{"status":200,"headers":[["a","b"]],"body":"aGk="}},{"op":"reserve","key":"k","token":"u"}`,
		`{"op":"renew","key":"k","token":"t","pending_ttl_ms":1},{"op":"unknown","key":"k","token":"t"},{"op":"release","key":"k","token":"t"},null`,
	} {
		f.Add(false, []byte(`{"items":[`+items+`]}`))
	}
	st := mem.New(mem.Options{})
	l, err := ledger.New(st, ledger.Options{MaxEntries: 10, MaxBytes: 3000, PendingTTL: short, CommittedTTL: short, RejectedTTL: short})
	if err != nil {
		f.Fatal(err)
	}
	s, err := New(Options{Options: httpd.Options{Version: "v", Logger: slog.New(slog.DiscardHandler)}}, LedgerRoutes(l, nil, Reach{}))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw bool, body []byte) {
		contentType := api.ContentTypeJSON
		if raw {
			contentType = api.ContentTypeRaw
		}
		var w httpd.Response
		s.Do(t.Context(), contentOf(contentType, httpd.Direct{Method: "POST", Path: api.PathBatch, Body: body}), &w)
		switch {
		case w.Status == 200:
			checkBatch(t, body, &w)
		case w.Status != 400 && w.Status != 413:
			t.Fatalf("%d %s", w.Status, w.Body)
		}
		stats, err := l.Stats(context.Background())
		if err != nil || stats.Pending+stats.Committed+stats.Rejected+stats.Unknown > 12 {
			t.Fatalf("%+v, %v", stats, err)
		}
	})
}
