package server

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/home"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/managertest/calls"
)

// contentOf gives a request a content-type, unless that is empty.
func contentOf(contentType string, d httpd.Direct) *httpd.Direct {
	d.Header = http.Header{}
	if contentType != "" {
		d.Header.Set("content-type", contentType)
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
	f.Add("POST", api.PathReject, "", "", schema.Append(nil, &raw))
	f.Add("POST", api.PathRelease, "", "text/plain", []byte(`{"key":"k","token":"t"}`))
	f.Add("GET", "/v1/ledger/entries/a%2Fb", "scope=%20", "", []byte{})
	f.Add("GET", "/v1/ledger/entries", "state=pending&limit=2&cursor=cDAwMDAwMDAwMC8xOnNr", "", []byte{})
	f.Add("DELETE", "/v1/ledger/entries/%zz", "%", "", []byte{})
	f.Add("GET", "/v1/ledger/stats", "", "", []byte{})
	f.Add("GET", "", "a=b", "", []byte{})
	f.Add("OPTIONS", "*", "", "", []byte{})
	st := mem.New(mem.Options{})
	// No waits: a request that may wait would hold up the fuzzer.
	l, err := ledger.New(st, ledger.Options{MaxWait: -1, MaxEntries: 50, PendingTTL: short, CommittedTTL: short, RejectedTTL: short})
	if err != nil {
		f.Fatal(err)
	}
	s, err := New(Options{Options: httpd.Options{Version: "v", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}}, LedgerRoutes(l, nil, nil, home.Reach{}))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, method, path, query, contentType string, body []byte) {
		var w httpd.Response
		s.Do(t.Context(), contentOf(contentType, httpd.Direct{Method: method, Path: path, Query: query, Body: body}), &w)
		if w.Status < 200 || w.Status >= 600 || w.Status == 500 {
			t.Fatalf("%s %s?%s: %d %s", method, path, query, w.Status, w.Body)
		}
		if w.ContentType == api.ContentTypeRaw {
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

// FuzzCalls sends any calls on a stream. Each gets a proper reply and never an internal error, and the stream stays open.
func FuzzCalls(f *testing.F) {
	reserve, commit, release := reserveOf("k", "t", 0), commitOf("k", "t", []byte("x")), releaseOf("k", "t")
	f.Add(uint8(api.OpReserve), reserve, uint8(api.OpCommit), commit)
	f.Add(uint8(api.OpReject), commit, uint8(api.OpRelease), release)
	f.Add(uint8(api.OpUnknown), reserve, uint8(api.OpRenew), reserve)
	f.Add(uint8(api.OpLookUp), release, uint8(api.OpPing), []byte{})
	f.Add(uint8(0), []byte{}, uint8(99), reserveOf("k", "u", time.Millisecond))
	l, err := ledger.New(mem.New(mem.Options{}), ledger.Options{MaxWait: -1, MaxEntries: 10, MaxBytes: 3000, PendingTTL: short, CommittedTTL: short, RejectedTTL: short})
	if err != nil {
		f.Fatal(err)
	}
	s, err := New(Options{Options: httpd.Options{Version: httpdtest.Version, Logger: slog.New(slog.DiscardHandler)}}, LedgerRoutes(l, nil, nil, home.Reach{}))
	if err != nil {
		f.Fatal(err)
	}
	stream, err := calls.Open(f.Context(), httpdtest.Start(f, s, httpdtest.Options{Drain: l.Drain}).Base)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(stream.Close)
	f.Fuzz(func(t *testing.T, op1 uint8, message1 []byte, op2 uint8, message2 []byte) {
		trace := [][2]string{{"traceparent", "00-1"}}
		replies, err := stream.Do(calls.Call{Op: api.Op(op1 & 127), Trace: trace, Message: message1}, calls.Call{Op: api.Op(op2 & 127), Message: message2})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range replies {
			var p api.Problem
			switch {
			case r.Status == 500, r.Status >= 300 && r.Status < 400:
				t.Fatalf("%d %s", r.Status, r.Body)
			case r.Status >= 400 && (!isJSON(r.Body) || schema.Unmarshal(r.Body, &p) != nil || p.Status != r.Status || p.Code == ""):
				t.Fatalf("no problem: %s", r.Body)
			case r.Status < 300 && len(r.Body) > 0:
				if err := new(api.ReserveReply).ParseRaw(r.Body); err != nil {
					t.Fatal(err)
				}
			}
		}
		stats, err := l.Stats(context.Background())
		if err != nil || stats.Pending+stats.Committed+stats.Rejected+stats.Unknown > 12 {
			t.Fatalf("%+v, %v", stats, err)
		}
	})
}
