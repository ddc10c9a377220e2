package server

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// BenchmarkJournal is what the ledger's journal adds to a call: one caller that reserves and commits over HTTP, with the
// durable engine, in turns with and without the journal. It reports the CPU time that a call takes without it, the
// client's included, and the median over the turns of the ratio.
func BenchmarkJournal(b *testing.B) {
	var callers [2]func(n int)
	for i, journal := range []int{-1, 0} {
		callers[i] = journalCaller(b, journal)
	}
	const turns = 200
	n := max(b.N/(2*turns), 20)
	var plain, ratios []float64
	for turn := range turns {
		var took [2]time.Duration
		for i := range callers {
			i = (i + turn) % 2
			before := cpuTime(b)
			callers[i](n)
			took[i] = cpuTime(b) - before
		}
		plain = append(plain, float64(took[0].Nanoseconds())/float64(2*n))
		ratios = append(ratios, 100*float64(took[1]-took[0])/float64(took[0]))
	}
	slices.Sort(plain)
	slices.Sort(ratios)
	b.ReportMetric(0, "ns/op") // of both together, so of nothing
	b.ReportMetric(plain[turns/2], "cpu-ns/call")
	b.ReportMetric(ratios[turns/2], "%-more-cpu")
}

// journalCaller returns a function that makes n reserves of new keys and their commits.
func journalCaller(b *testing.B, journal int) func(n int) {
	st := durableStore(b)
	b.Cleanup(func() { _ = st.Close() })
	l, err := ledger.New(st, ledger.Options{MaxEntries: 10_000_000, MaxBytes: 1 << 40, ScopeShare: -1, JournalKeys: journal})
	if err != nil {
		b.Fatal(err)
	}
	s, err := New(Options{Options: httpd.Options{Version: "v", Logger: slog.New(slog.DiscardHandler)}}, LedgerRoutes(l, nil, nil, Reach{}))
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
