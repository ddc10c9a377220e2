package server

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/home"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/journal"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// BenchmarkJournal is what the ledger's journal adds to a call over HTTP with the durable engine. Such a call takes some
// hundred times as long as the journal's part of it, which its noise hides. So the benchmark measures that part where it
// is large, in calls of the ledger itself with the engine in memory, in turns with the journal, without it, and without
// it on one more ledger. It reports the CPU time that a call over HTTP takes without the journal, the client's included;
// what the journal adds, and what the other ledger seems to add, which is the error; and both as parts of the first.
// Each time is the smallest of many turns, since other programs on the machine can only add to it.
func BenchmarkJournal(b *testing.B) {
	callers := [...]func(n int){journalCaller(b), directCaller(b, nil), directCaller(b, journal.New(journal.DefaultKeys)), directCaller(b, nil)}
	sizes := [len(callers)]int{20, 200, 200, 200}
	var least [len(callers)]float64
	for turn := range max(b.N, 100) {
		for i := range callers {
			i = (i + turn) % len(callers)
			before := cpuTime(b)
			callers[i](sizes[i])
			took := float64((cpuTime(b) - before).Nanoseconds()) / float64(2*sizes[i])
			if turn == 0 || took < least[i] {
				least[i] = took
			}
		}
	}
	call, more, other := least[0], least[2]-least[1], least[3]-least[1]
	b.ReportMetric(0, "ns/op") // of all together, so of nothing
	b.ReportMetric(call, "cpu-ns/call")
	b.ReportMetric(more, "journal-ns/call")
	b.ReportMetric(100*more/call, "%-more-cpu")
	b.ReportMetric(100*other/call, "%-error")
}

// directCaller is journalCaller without HTTP, on an engine in memory. With a journal each call names its caller.
func directCaller(b *testing.B, j *journal.Journal) func(n int) {
	st := mem.New(mem.Options{})
	b.Cleanup(func() { _ = st.Close() })
	l, err := ledger.New(st, ledger.Options{MaxEntries: 10_000_000, MaxBytes: 1 << 40, ScopeShare: -1, Observer: j})
	if err != nil {
		b.Fatal(err)
	}
	keys, result := 0, (&api.Result{Status: 201, Body: make([]byte, 256)}).AppendRaw(nil)
	return func(n int) {
		for range n {
			keys++
			reserve := api.ReserveRequest{Key: "host1.dc1:12345:" + strconv.Itoa(keys), Scope: "c2NvcGUtb2YtdGhlLWNhbGxlcg", Token: "0123456789abcdef0123456789abcdef", Fingerprint: "ZmluZ2VycHJpbnQ"}
			ctx := b.Context()
			if j != nil {
				ctx = ledger.WithCaller(ctx, "10.0.0.7:43122") // which nothing else reads
			}
			if _, err := l.Reserve(ctx, &reserve, nil); err != nil {
				b.Fatal(err)
			}
			commit := ledger.FinishRequest{Key: reserve.Key, Scope: reserve.Scope, Token: reserve.Token, Result: result}
			if err := l.Commit(ctx, &commit); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// journalCaller returns a function that makes n reserves of new keys and their commits over HTTP, without a journal.
func journalCaller(b *testing.B) func(n int) {
	st := durableStore(b)
	b.Cleanup(func() { _ = st.Close() })
	l, err := ledger.New(st, ledger.Options{MaxEntries: 10_000_000, MaxBytes: 1 << 40, ScopeShare: -1})
	if err != nil {
		b.Fatal(err)
	}
	s, err := New(Options{Options: httpd.Options{Version: "v", Logger: slog.New(slog.DiscardHandler)}}, LedgerRoutes(l, nil, nil, home.Reach{}))
	if err != nil {
		b.Fatal(err)
	}
	site := httpdtest.Start(b, s, httpdtest.Options{Drain: l.Drain})
	conn, err := net.Dial("tcp", site.Addr)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	answers := bufio.NewReader(conn)
	var body, request []byte
	call := func(path string, want int) {
		request = fmt.Appendf(request[:0], "POST %s HTTP/1.1\r\nhost: x\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s", path, api.ContentTypeRaw, len(body), body)
		if _, err := conn.Write(request); err != nil {
			b.Fatal(err)
		}
		answer, err := http.ReadResponse(answers, nil)
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		if answer.StatusCode != want {
			b.Fatalf("%s: %s", path, answer.Status)
		}
	}
	keys := 0
	return func(n int) {
		for range n {
			keys++
			reserve := api.ReserveRequest{Key: "host1.dc1:12345:" + strconv.Itoa(keys), Scope: "c2NvcGUtb2YtdGhlLWNhbGxlcg", Token: "0123456789abcdef0123456789abcdef", Fingerprint: "ZmluZ2VycHJpbnQ"}
			body = reserve.AppendRaw(body[:0])
			call(api.PathReserve, 201)
			commit := api.FinishRequest{Key: reserve.Key, Scope: reserve.Scope, Token: reserve.Token, Result: api.Result{Status: 201, Body: make([]byte, 256)}}
			body = commit.AppendRaw(body[:0])
			call(api.PathCommit, 200)
		}
	}
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
