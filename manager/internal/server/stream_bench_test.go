package server

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
)

// BenchmarkStream is one new submission over a connection, a reserve and a commit of a 256 B answer, with 64 of them under way: as calls on
// a stream, as items of batches, and as calls of their own. The CPU is that of both sides.
func BenchmarkStream(b *testing.B) {
	for name, caller := range map[string]func(b *testing.B, site *httpdtest.Site) func(op api.Op, message []byte) int{
		"stream": streamCaller, "batch": batchCaller, "single": singleCaller,
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

// streamCaller makes calls on one stream. It gathers what is to be sent, as a gate's proxy does.
func streamCaller(b *testing.B, site *httpdtest.Site) func(api.Op, []byte) int {
	st := site.Stream(httpdtest.HTTP2(b), api.PathCalls)
	var mu sync.Mutex
	var out []byte
	var number uint64
	waiting, wake := map[uint64]chan int{}, make(chan struct{}, 1)
	done := make(chan struct{})
	b.Cleanup(func() { close(done) })
	go func() {
		var sending []byte
		for {
			select {
			case <-wake:
			case <-done:
				return
			}
			mu.Lock()
			sending, out = out, sending[:0]
			mu.Unlock()
			if st.Write(sending) != nil {
				return
			}
		}
	}()
	go func() {
		for {
			m, err := st.Receive()
			if err != nil {
				return
			}
			var r api.StreamReply
			if err := r.View(m); err != nil {
				b.Error(err)
			}
			mu.Lock()
			answered := waiting[r.Number]
			delete(waiting, r.Number)
			mu.Unlock()
			answered <- r.Status
		}
	}()
	return func(op api.Op, message []byte) int {
		answered := make(chan int, 1)
		mu.Lock()
		number++
		waiting[number] = answered
		out = httpdtest.Frame(out, api.AppendStreamCall(nil, number, op, nil, message))
		mu.Unlock()
		select {
		case wake <- struct{}{}:
		default:
		}
		return <-answered
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

// batchCaller makes calls in batches, those that come while one is under way in the next one, as the gate did.
func batchCaller(b *testing.B, site *httpdtest.Site) func(api.Op, []byte) int {
	type call struct {
		op       api.Op
		message  []byte
		answered chan int
	}
	calls := make(chan call, 64)
	b.Cleanup(func() { close(calls) })
	go func() {
		for first := range calls {
			all := []call{first}
			for more := true; more && len(all) < 64; {
				select {
				case c, ok := <-calls:
					if more = ok; ok {
						all = append(all, c)
					}
				default:
					more = false
				}
			}
			body := api.AppendRawBatch(nil, len(all))
			for _, c := range all {
				body = api.AppendRawItem(body, c.op, nil, c.message)
			}
			a, err := site.Try(b.Context(), "POST", api.PathBatch, api.ContentTypeRaw, string(body))
			if err != nil {
				b.Error(err)
			}
			answers, err := api.ViewRawAnswers(nil, []byte(a.Body))
			if err != nil || len(answers) != len(all) {
				b.Error(err)
			}
			for i := range all {
				all[i].answered <- answers[i].Status
			}
		}
	}()
	return func(op api.Op, message []byte) int {
		answered := make(chan int, 1)
		calls <- call{op, message, answered}
		return <-answered
	}
}
