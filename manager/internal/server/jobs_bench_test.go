package server

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// BenchmarkJobCalls submits, claims and finishes jobs with payloads of 256 bytes, ten in a call, without a network and in
// memory.
func BenchmarkJobCalls(b *testing.B) {
	st := mem.New(mem.Options{})
	l, err := ledger.New(st, ledger.Options{MaxEntries: 20_000_000, MaxBytes: 1 << 40, ScopeShare: -1})
	if err != nil {
		b.Fatal(err)
	}
	q, err := jobs.New(st, jobs.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(q.Close)
	s, err := New(Options{Options: httpd.Options{Version: "v", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}}, JobRoutes(l, q))
	if err != nil {
		b.Fatal(err)
	}
	const item = `{"function":"f","payload":"` + "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" + `"}`
	batch := `{"items":[` + item
	for range 9 {
		batch += "," + item
	}
	batch += "]}"
	call := newBenchCall()
	call.request.Header.Set("content-type", api.ContentTypeJSON)
	b.ReportAllocs()
	for b.Loop() {
		s.bench(b, call, "/v1/jobs/batch", []byte(batch), 200)
		s.bench(b, call, "/v1/jobs/claim", []byte(`{"worker":"w","functions":["f"],"limit":10,"lease_ms":60000}`), 200)
		var got struct {
			Jobs []struct {
				ID    string
				Lease struct{ Token string }
			}
		}
		b.StopTimer()
		if err := json.Unmarshal(call.answer.Body, &got); err != nil || len(got.Jobs) != 10 {
			b.Fatal(err, len(got.Jobs))
		}
		body := []byte(`{"finishes":[`)
		for i, j := range got.Jobs {
			body = fmt.Appendf(body, `%s{"id":"%s","lease_token":"%s","status":"complete","result":{"ok":true}}`, ","[:min(i, 1)], j.ID, j.Lease.Token)
		}
		body = append(body, "]}"...)
		b.StartTimer()
		s.bench(b, call, "/v1/jobs/finish", body, 200)
	}
}
