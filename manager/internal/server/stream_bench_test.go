package server

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
	"github.com/oncegate/oncegate/manager/managertest/calls"
)

// BenchmarkStream is one new submission over a connection, a reserve and a commit of a 256 B answer, with 64 of them under way: as calls on
// a stream, and as calls of their own. The CPU is that of both sides.
func BenchmarkStream(b *testing.B) {
	for name, caller := range map[string]func(b *testing.B, site *httpdtest.Site) func(op api.Op, message []byte) int{
		"stream": streamCaller, "single": singleCaller,
	} {
		b.Run(name, func(b *testing.B) {
			call := caller(b, httpdtest.Start(b, benchServer(b, volatileStore(b)), httpdtest.Options{}))
			result := api.Result{Status: 201, Headers: []api.Header{{Name: "content-type", Value: "application/json"}}, Body: make([]byte, 256)}
			var n atomic.Int64
			before := cpuTime(b)
			b.ReportAllocs()
			b.ResetTimer()
			var clients sync.WaitGroup
			for range 64 {
				clients.Go(func() {
					for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
						key := "host1.dc1:12345:" + strconv.FormatInt(i, 10)
						reserve := api.ReserveRequest{Key: key, Scope: "c2NvcGUtb2YtdGhlLWNhbGxlcg", Token: "0123456789abcdef0123456789abcdef", Fingerprint: "ZmluZ2VycHJpbnQ"}
						commit := api.FinishRequest{Key: key, Scope: reserve.Scope, Token: reserve.Token, Result: result}
						if a, c := call(api.OpReserve, reserve.AppendRaw(nil)), call(api.OpCommit, commit.AppendRaw(nil)); a != 201 || c != 200 {
							b.Errorf("%d, %d", a, c)
						}
					}
				})
			}
			clients.Wait()
			b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

func streamCaller(b *testing.B, site *httpdtest.Site) func(api.Op, []byte) int {
	st, err := calls.Open(b.Context(), site.Base)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(st.Close)
	return func(op api.Op, message []byte) int {
		replies, err := st.Do(calls.Call{Op: op, Message: message})
		if err != nil {
			b.Error(err)
		}
		return replies[0].Status
	}
}

func singleCaller(b *testing.B, site *httpdtest.Site) func(api.Op, []byte) int {
	site.Client.Transport.(*http.Transport).MaxIdleConnsPerHost = 64
	return func(op api.Op, message []byte) int {
		a, err := site.Try(b.Context(), "POST", op.Path(), api.ContentTypeRaw, string(message))
		if err != nil {
			b.Error(err)
		}
		return a.Status
	}
}
