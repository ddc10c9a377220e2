package server

import (
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/logs/storelogs"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// BenchmarkLogAppend appends entries of 256 bytes with 64 callers, alone and in batches, without a
// network.
func BenchmarkLogAppend(b *testing.B) {
	payload := base64.StdEncoding.EncodeToString(make([]byte, 256))
	for _, batch := range []int{1, 16} {
		b.Run(fmt.Sprint("batch=", batch), func(b *testing.B) {
			discard := slog.New(slog.NewTextHandler(io.Discard, nil))
			st, err := mem.Open(b.Context(), b.TempDir(), mem.Options{})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = st.Close() })
			engine, err := storelogs.Open(b.Context(), st, storelogs.Options{Logger: discard})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = engine.Close() })
			if _, _, err := engine.Put(b.Context(), "log", logs.Change{}); err != nil {
				b.Fatal(err)
			}
			s, err := New(Options{Options: httpd.Options{Version: "v", Logger: discard}}, LogRoutes(engine))
			if err != nil {
				b.Fatal(err)
			}
			want := 201
			if batch > 1 {
				want = 200
			}
			var n atomic.Int64
			b.ReportAllocs()
			b.SetParallelism(32) // times two processors
			b.RunParallel(func(pb *testing.PB) {
				call := newBenchCall()
				call.request.Header.Set("content-type", api.ContentTypeJSON)
				var buf []byte
				for pb.Next() {
					buf = buf[:0]
					for i := range batch {
						buf = append(buf, `,{"id":"0123456789abcdef`[min(i, 1)^1:]...)
						buf = strconv.AppendInt(buf, n.Add(1), 10)
						buf = append(append(append(buf, `","payload":"`...), payload...), `"}`...)
					}
					if batch > 1 {
						buf = append(append([]byte(`{"entries":[`), buf...), `]}`...)
					}
					s.bench(b, call, "/v1/logs/log/entries", buf, want)
				}
			})
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/entry")
		})
	}
}

// BenchmarkParseAppend reads a batch of 32 entries as a writer sends them, with the reader of such bodies and with that of any.
func BenchmarkParseAppend(b *testing.B) {
	payload := base64.StdEncoding.EncodeToString(make([]byte, 256))
	var body []byte
	for i := range 32 {
		body = fmt.Appendf(body, `,{"id":"0123456789abcdef0123456789%06d","payload":"%s"}`, i, payload)
	}
	body = append(append([]byte(`{"entries":[`), body[1:]...), `]}`...)
	for name, parse := range map[string]func([]byte) (appendCall, error){"quick": parseAppend, "any": parseAnyAppend} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if a, err := parse(body); err != nil || len(a.items) != 32 {
					b.Fatal(len(a.items), err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*32), "ns/entry")
		})
	}
}
