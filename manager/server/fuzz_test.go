package server

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/ledger"
	"github.com/oncegate/oncegate/manager/store/mem"
)

// fakeSource is a request without an engine.
type fakeSource struct{ contentType string }

func (s fakeSource) header(name string) string {
	if name == "content-type" {
		return s.contentType
	}
	return ""
}
func (fakeSource) remote() string { return "test" }
func (fakeSource) verified() bool { return false }
func (fakeSource) left() bool     { return false }
func (fakeSource) watch(parent context.Context) (context.Context, func()) {
	return parent, func() {}
}

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
	st := mem.New(mem.Options{})
	// No waits: a request that may wait would hold up the fuzzer.
	l, err := ledger.New(context.Background(), st, ledger.Options{MaxWait: -1, MaxEntries: 50})
	if err != nil {
		f.Fatal(err)
	}
	s, err := New(Options{Version: "v", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}, LedgerRoutes(l, nil))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, method, path, query, contentType string, body []byte) {
		r := &Request{Method: method, Path: path, Query: query, Body: body, source: fakeSource{contentType}}
		var w Response
		s.serve(r, &w)
		if w.Status < 200 || w.Status >= 600 || w.Status == 500 {
			t.Fatalf("%s %s?%s: %d %s", method, path, query, w.Status, w.Body)
		}
		if w.ContentType == api.ContentTypeRaw {
			if err := new(api.ReserveReply).ParseRaw(w.Body); err != nil {
				t.Fatal(err)
			}
		} else if !json.Valid(w.Body) {
			t.Fatalf("not JSON: %s", w.Body)
		}
		if n, err := st.Len(context.Background(), "ledger", ""); err != nil || n > 50 {
			t.Fatalf("%d entries, %v", n, err)
		}
	})
}
