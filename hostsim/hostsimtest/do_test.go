package hostsimtest_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
	"github.com/oncegate/oncegate/hostsim/internal/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// tagger marks requests and responses as they pass.
type tagger struct {
	hostsim.DefaultGuest
	h hostsim.HostCalls
}

func (g *tagger) OnRequestHeaders(uint32, int, bool) (hostsim.Action, error) {
	if v, _ := g.h.GetHeaderMapValue(hostsim.MapRequestHeaders, ":path"); v == "/trap" {
		return 0, errors.New("trapped")
	}
	g.h.AddHeaderMapValue(hostsim.MapRequestHeaders, "x-tag", "in")
	return hostsim.ActionContinue, nil
}

func (g *tagger) OnResponseHeaders(uint32, int, bool) (hostsim.Action, error) {
	g.h.AddHeaderMapValue(hostsim.MapResponseHeaders, "x-tag", "out")
	return hostsim.ActionContinue, nil
}

func source() hostsim.Source {
	return hostsim.Native(func(h hostsim.HostCalls) hostsim.Guest { return &tagger{h: h} })
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hostsimtest.Patience)
	t.Cleanup(cancel)
	return ctx
}

func TestDoCarriesAnExchange(t *testing.T) {
	h := hostsimtest.Start(t, hostsim.Config{Guest: source()})
	big := bytes.Repeat([]byte("x"), 3<<20)
	resp, err := hostsimtest.Do(within(t), h, hostsimtest.Request{Headers: hostsimtest.Post("/a"), Pieces: [][]byte{[]byte("abc"), big}, Trailers: hostsim.H("t", "1")},
		func(m hostsimtest.Message) hostsimtest.Response {
			if m.Headers.Get("x-tag") != "in" || len(m.Body) != 3+len(big) || m.Trailers.Get("t") != "1" {
				t.Errorf("upstream got %v, %d bytes, trailers %v", m.Headers, len(m.Body), m.Trailers)
			}
			return hostsimtest.Response{Status: 201, Headers: hostsim.H("x-a", "1"), Pieces: [][]byte{big, []byte("end")}, Trailers: hostsim.H("r", "2")}
		})
	if err != nil {
		t.Fatal(err)
	}
	if resp.Status != 201 || resp.Headers.Get("x-a") != "1" || resp.Headers.Get("x-tag") != "out" || len(resp.Body) != len(big)+3 || resp.Trailers.Get("r") != "2" {
		t.Errorf("response is %d %v, %d bytes, %v", resp.Status, resp.Headers, len(resp.Body), resp.Trailers)
	}
	hostsimtest.Healthy(t, h)
}

func TestDoReportsFailures(t *testing.T) {
	h := hostsimtest.Start(t, hostsim.Config{Guest: source()})
	get := hostsimtest.Request{Headers: hostsimtest.Get("/")}
	resp, err := hostsimtest.Do(within(t), h, get, func(hostsimtest.Message) hostsimtest.Response {
		return hostsimtest.Response{Failure: hostsim.UpstreamConnectFailed}
	})
	if err != nil || resp.Status != 503 || resp.Headers.Get("x-tag") != "out" {
		t.Errorf("upstream failure: %v %v", resp, err)
	}
	var reset *hostsimtest.ResetError
	_, err = hostsimtest.Do(within(t), h, get, func(hostsimtest.Message) hostsimtest.Response {
		return hostsimtest.Response{Status: 200, Body: []byte("abc"), Failure: hostsim.UpstreamDisconnected, FailAfterHeaders: true}
	})
	if !errors.As(err, &reset) || reset.Reason != hostsim.ResetUpstream {
		t.Errorf("failure after headers: %v", err)
	}
	get.Leave = hostsimtest.UpstreamHasRequest
	_, err = hostsimtest.Do(within(t), h, get, func(hostsimtest.Message) hostsimtest.Response {
		t.Error("upstream answered a client that left")
		return hostsimtest.Response{}
	})
	if !errors.Is(err, hostsimtest.ErrLeft) {
		t.Errorf("client left: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	_, err = hostsimtest.Do(ctx, h, hostsimtest.Request{Headers: hostsimtest.Get("/")}, func(hostsimtest.Message) hostsimtest.Response {
		cancel()
		<-ctx.Done()
		return hostsimtest.Response{Status: 200}
	})
	if !errors.Is(err, context.Canceled) && err != nil {
		t.Errorf("cancelled: %v", err)
	}
	if err := h.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := hostsimtest.Do(within(t), h, get, nil); !errors.Is(err, hostsim.ErrClosed) {
		t.Errorf("closed host: %v", err)
	}
}

// recorder is a testing.TB that remembers failures instead of failing.
type recorder struct {
	testing.TB
	errors []string
}

func (r *recorder) Errorf(format string, args ...any) { r.errors = append(r.errors, format) }
func (r *recorder) Helper()                           {}

func TestHealthyAndDump(t *testing.T) {
	process := hostsim.NewProcess()
	h := hostsimtest.Start(t, hostsim.Config{Guest: source(), Process: process})
	process.SetSharedData("", "a-key", []byte("a value"), 0)
	paused := hostsimtest.Open(t, h, 0)
	paused.RequestHeaders(hostsimtest.Post("/waits"), false)
	if _, err := hostsimtest.Do(within(t), h, hostsimtest.Request{Headers: hostsimtest.Get("/trap")}, nil); err != nil {
		t.Fatal(err)
	}
	bad := hostsimtest.Open(t, h, 0)
	bad.ResponseHeaders(nil, true)
	hostsimtest.Settle(t, h)
	rec := &recorder{TB: t}
	hostsimtest.Healthy(rec, h)
	if len(rec.errors) != 2 {
		t.Errorf("complaints are %q", rec.errors)
	}
	dump := hostsimtest.Dump(h)
	for _, want := range []string{"trap worker-0 proxy_on_request_headers: trapped", "violation worker-0 #0: unexpected response headers", `shared data "a-key" = "a value"`, "POST /waits: request iterating"} {
		if !strings.Contains(dump, want) {
			t.Errorf("no %q in\n%s", want, dump)
		}
	}
}

func TestGoldenShowsTheFirstDifference(t *testing.T) {
	rec := &recorder{TB: t}
	hostsimtest.Golden(rec, "sample", "line 1\nline 2\n")
	if len(rec.errors) != 0 {
		t.Errorf("an equal transcript: %q", rec.errors)
	}
	hostsimtest.Golden(rec, "sample", "line 1\nline two\n")
	hostsimtest.Golden(rec, "sample", "line 1\n")
	if len(rec.errors) != 2 {
		t.Errorf("different transcripts: %q", rec.errors)
	}
}

func TestAwaitReturnsWhatArrived(t *testing.T) {
	h := hostsimtest.Start(t, hostsim.Config{Guest: source(), Clock: hostsim.NewVirtualClock(hostsimtest.Epoch), StreamIdleTimeout: time.Minute})
	s := hostsimtest.Open(t, h, hostsim.AnyWorker)
	s.Request(hostsimtest.Get("/"))
	if m := s.AwaitUp(hostsimtest.Ended); m.Headers.Get(":path") != "/" {
		t.Errorf("upstream got %v", m.Headers)
	}
	s.Respond(204)
	if m := s.AwaitDown(hostsimtest.Ended); m.Status() != "204" || !s.Over() {
		t.Errorf("client got %v", m.Headers)
	}
}

func TestNextEndsWithItsContext(t *testing.T) {
	c := &hostsimtest.Cluster{}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := c.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}
