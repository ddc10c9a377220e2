package hostsim_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
	"github.com/oncegate/oncegate/hostsim/testdata/script"
)

// guestSource is a module that `make guests` has built. All tests share it, so that it
// is compiled once.
func guestSource(tb testing.TB, name string) hostsim.Source {
	tb.Helper()
	guests.Lock()
	defer guests.Unlock()
	if src := guests.m[name]; src != nil {
		return src
	}
	b, err := os.ReadFile(filepath.Join("..", "build", "guests", name+".wasm"))
	if err != nil {
		tb.Fatalf("%v (run `make guests` first)", err)
	}
	guests.m[name] = hostsim.Wasm(b)
	return guests.m[name]
}

var guests = struct {
	sync.Mutex
	m map[string]hostsim.Source
}{m: make(map[string]hostsim.Source)}

// rig is a host with the script guest on it.
type rig struct {
	*testing.T
	src   hostsim.Source
	wasm  bool
	clock *hostsim.VirtualClock
	logs  *logBook
	h     *hostsim.Host
}

// eachGuest runs a test with the script filter as a native guest and as a wasm guest.
func eachGuest(t *testing.T, test func(r *rig)) {
	t.Run("native", func(t *testing.T) { test(newRig(t, nativeScript())) })
	t.Run("wasm", func(t *testing.T) { test(wasmRig(t)) })
}

func wasmRig(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, guestSource(t, "script"))
	r.wasm = true
	return r
}

func newRig(t *testing.T, src hostsim.Source) *rig {
	return &rig{T: t, src: src, clock: hostsim.NewVirtualClock(hostsimtest.Epoch), logs: &logBook{tb: t}}
}

// config fills in what every test of a rig has in common.
func (r *rig) config(cfg hostsim.Config) hostsim.Config {
	if cfg.Guest == nil {
		cfg.Guest = r.src
	}
	if cfg.Clock == nil {
		cfg.Clock = r.clock
	}
	cfg.Logger = slog.New(r.logs)
	if cfg.Seed == 0 {
		cfg.Seed = 1
	}
	return cfg
}

func (r *rig) start(cfg hostsim.Config) *hostsim.Host {
	r.Helper()
	r.h = hostsimtest.Start(r, r.config(cfg))
	return r.h
}

// startError starts a host that must not start.
func (r *rig) startError(cfg hostsim.Config) string {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hostsimtest.Patience)
	defer cancel()
	h, err := hostsim.Start(ctx, r.config(cfg))
	if err == nil {
		_ = h.Close(ctx)
		r.Fatal("the host started")
	}
	return err.Error()
}

// open starts a stream on worker 0 whose filter runs a script.
func (r *rig) open(scriptText string, nameValues ...string) (*hostsimtest.Stream, hostsim.Headers) {
	r.Helper()
	return hostsimtest.Open(r, r.h, 0), hostsimtest.Post("/x", append([]string{"x-script", scriptText}, nameValues...)...)
}

// run opens a stream and feeds a whole request.
func (r *rig) run(scriptText string, pieces ...string) *hostsimtest.Stream {
	r.Helper()
	s, h := r.open(scriptText)
	s.Request(h, pieces...)
	s.Settle()
	return s
}

// wantLog compares what the guest logged on a thread since the last time.
func (r *rig) wantLog(thread string, want ...string) {
	r.Helper()
	r.settle()
	if got := r.logs.take(thread); strings.Join(got, "\n") != strings.Join(want, "\n") {
		r.Errorf("%s logged\n  %s\nwant\n  %s", thread, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func (r *rig) settle() {
	r.Helper()
	if r.h != nil {
		hostsimtest.Settle(r, r.h)
	}
}

func want[T comparable](tb testing.TB, what string, got, want T) {
	tb.Helper()
	if got != want {
		tb.Errorf("%s is %v, want %v", what, got, want)
	}
}

// logBook keeps what guests log at info, by thread, and shows the rest in the test's
// log.
type logBook struct {
	tb    testing.TB
	mu    sync.Mutex
	lines map[string][]string
}

func (l *logBook) Enabled(context.Context, slog.Level) bool { return true }
func (l *logBook) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logBook) WithGroup(string) slog.Handler            { return l }

func (l *logBook) Handle(_ context.Context, rec slog.Record) error {
	var thread, message string
	rest := ""
	rec.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "thread":
			thread = a.Value.String()
		case "message":
			message = a.Value.String()
		default:
			rest += " " + a.String()
		}
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if message == "panic: as the script says" {
		return nil // TinyGo prints it before it traps
	}
	if rec.Message == "wasm log" && rec.Level == slog.LevelInfo {
		if l.lines == nil {
			l.lines = make(map[string][]string)
		}
		l.lines[thread] = append(l.lines[thread], message)
		return nil
	}
	l.tb.Log(rec.Level, thread, rec.Message, message, rest)
	return nil
}

func (l *logBook) take(thread string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines[thread]
	delete(l.lines, thread)
	return lines
}

func within(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hostsimtest.Patience)
	tb.Cleanup(cancel)
	return ctx
}

// await waits for a condition that something outside the host brings about.
func await(tb testing.TB, ch <-chan struct{}, what string) {
	tb.Helper()
	select {
	case <-ch:
	case <-time.After(hostsimtest.Patience):
		tb.Fatalf("%s did not happen", what)
	}
}

// --- the script filter as a native guest ---

func nativeScript() hostsim.Source {
	return hostsim.Native(func(c hostsim.HostCalls) hostsim.Guest { return &scriptGuest{vm: script.New(nativeHost{c})} })
}

type scriptGuest struct {
	hostsim.DefaultGuest
	vm *script.VM
}

func (g *scriptGuest) OnContextCreate(c, p uint32) error       { g.vm.Create(c, p); return nil }
func (g *scriptGuest) OnVMStart(_ uint32, n int) (bool, error) { return g.vm.Start(uint32(n)), nil }
func (g *scriptGuest) OnConfigure(_ uint32, n int) (bool, error) {
	return g.vm.Configure(uint32(n)), nil
}
func (g *scriptGuest) OnTick(uint32) error            { g.vm.Plugin("tick"); return nil }
func (g *scriptGuest) OnQueueReady(_, _ uint32) error { g.vm.Plugin("queue"); return nil }
func (g *scriptGuest) OnDone(c uint32) (bool, error)  { return g.vm.EndOf(c), nil }
func (g *scriptGuest) OnLog(c uint32) error           { g.stream("log", c, 0, false); return nil }
func (g *scriptGuest) OnDelete(c uint32) error        { g.stream("delete", c, 0, false); return nil }
func (g *scriptGuest) OnHTTPCallResponse(_, token uint32, h, b, t int) error {
	g.vm.Answer(token, uint32(h), uint32(b), uint32(t))
	return nil
}

func (g *scriptGuest) OnGRPCReceiveInitialMetadata(_, token uint32, n int) error {
	g.vm.GRPC("gm", token, uint32(n))
	return nil
}

func (g *scriptGuest) OnGRPCReceive(_, token uint32, n int) error {
	g.vm.GRPC("gr", token, uint32(n))
	return nil
}

func (g *scriptGuest) OnGRPCReceiveTrailingMetadata(_, token uint32, n int) error {
	g.vm.GRPC("gt", token, uint32(n))
	return nil
}

func (g *scriptGuest) OnGRPCClose(_, token, status uint32) error {
	g.vm.GRPC("gc", token, status)
	return nil
}

func (g *scriptGuest) stream(when string, c uint32, n int, end bool) (hostsim.Action, error) {
	return hostsim.Action(g.vm.Stream(when, c, uint32(n), end)), nil
}

func (g *scriptGuest) OnRequestHeaders(c uint32, n int, end bool) (hostsim.Action, error) {
	return g.stream("rh", c, n, end)
}

func (g *scriptGuest) OnRequestBody(c uint32, n int, end bool) (hostsim.Action, error) {
	return g.stream("rb", c, n, end)
}

func (g *scriptGuest) OnRequestTrailers(c uint32, n int) (hostsim.Action, error) {
	return g.stream("rt", c, n, true)
}

func (g *scriptGuest) OnResponseHeaders(c uint32, n int, end bool) (hostsim.Action, error) {
	return g.stream("sh", c, n, end)
}

func (g *scriptGuest) OnResponseBody(c uint32, n int, end bool) (hostsim.Action, error) {
	return g.stream("sb", c, n, end)
}

func (g *scriptGuest) OnResponseTrailers(c uint32, n int) (hostsim.Action, error) {
	return g.stream("st", c, n, true)
}

type nativeHost struct{ c hostsim.HostCalls }

func headers(pairs [][2]string) hostsim.Headers {
	// What a guest hands over passes the serialized form, limits and all.
	h := make(hostsim.Headers, len(pairs))
	for i, p := range pairs {
		h[i] = p
	}
	return hostsim.UnmarshalPairs(hostsim.MarshalPairs(h))
}

func (n nativeHost) Log(l uint32, s string) uint32 { return uint32(n.c.Log(hostsim.LogLevel(l), s)) }
func (n nativeHost) GetProperty(p string) ([]byte, uint32) {
	b, st := n.c.GetProperty(p)
	return b, uint32(st)
}
func (n nativeHost) SetProperty(p string, v []byte) uint32 { return uint32(n.c.SetProperty(p, v)) }
func (n nativeHost) GetStatus() (uint32, string)           { return n.c.GetStatus() }
func (n nativeHost) Foreign(name string) uint32 {
	_, st := n.c.CallForeignFunction(name, nil)
	return uint32(st)
}
func (n nativeHost) Get(m uint32, k string) (string, uint32) {
	v, st := n.c.GetHeaderMapValue(hostsim.MapType(m), k)
	return v, uint32(st)
}
func (n nativeHost) Pairs(m uint32) ([][2]string, uint32) {
	h, st := n.c.GetHeaderMapPairs(hostsim.MapType(m))
	out := make([][2]string, len(h))
	for i, p := range h {
		out[i] = p
	}
	return out, uint32(st)
}
func (n nativeHost) Size(m uint32) (uint32, uint32) {
	v, st := n.c.GetHeaderMapSize(hostsim.MapType(m))
	return v, uint32(st)
}
func (n nativeHost) Add(m uint32, k, v string) uint32 {
	return uint32(n.c.AddHeaderMapValue(hostsim.MapType(m), k, v))
}
func (n nativeHost) Replace(m uint32, k, v string) uint32 {
	return uint32(n.c.ReplaceHeaderMapValue(hostsim.MapType(m), k, v))
}
func (n nativeHost) Remove(m uint32, k string) uint32 {
	return uint32(n.c.RemoveHeaderMapValue(hostsim.MapType(m), k))
}
func (n nativeHost) SetPairs(m uint32, p [][2]string) uint32 {
	return uint32(n.c.SetHeaderMapPairs(hostsim.MapType(m), headers(p)))
}
func (n nativeHost) Buffer(b, start, length uint32) ([]byte, uint32) {
	v, st := n.c.GetBufferBytes(hostsim.BufferType(b), start, length)
	return v, uint32(st)
}
func (n nativeHost) BufferSize(b uint32) (uint32, uint32) {
	v, st := n.c.GetBufferStatus(hostsim.BufferType(b))
	return v, uint32(st)
}
func (n nativeHost) SetBuffer(b, start, length uint32, v []byte) uint32 {
	return uint32(n.c.SetBufferBytes(hostsim.BufferType(b), start, length, v))
}
func (n nativeHost) Continue(t uint32) uint32 {
	return uint32(n.c.ContinueStream(hostsim.StreamType(t)))
}
func (n nativeHost) Close(t uint32) uint32 { return uint32(n.c.CloseStream(hostsim.StreamType(t))) }
func (n nativeHost) Reply(code uint32, d string, b []byte, h [][2]string, g int32) uint32 {
	return uint32(n.c.SendLocalResponse(code, d, b, headers(h), g))
}
func (n nativeHost) Effective(id uint32) uint32 { return uint32(n.c.SetEffectiveContext(id)) }
func (n nativeHost) Done() uint32               { return uint32(n.c.Done()) }
func (n nativeHost) Call(c string, h [][2]string, b []byte, t [][2]string, ms uint32) (uint32, uint32) {
	token, st := n.c.HTTPCall(c, headers(h), b, headers(t), ms)
	return token, uint32(st)
}
func (n nativeHost) GRPCStream(service []byte, name, method string, metadata [][2]string) (uint32, uint32) {
	token, st := n.c.GRPCStream(service, name, method, headers(metadata))
	return token, uint32(st)
}
func (n nativeHost) GRPCSend(token uint32, b []byte, end bool) uint32 {
	return uint32(n.c.GRPCSend(token, b, end))
}
func (n nativeHost) GRPCClose(token uint32) uint32  { return uint32(n.c.GRPCClose(token)) }
func (n nativeHost) GRPCCancel(token uint32) uint32 { return uint32(n.c.GRPCCancel(token)) }
func (n nativeHost) SharedGet(k string) ([]byte, uint32, uint32) {
	v, cas, st := n.c.GetSharedData(k)
	return v, cas, uint32(st)
}
func (n nativeHost) SharedSet(k string, v []byte, cas uint32) uint32 {
	return uint32(n.c.SetSharedData(k, v, cas))
}
func (n nativeHost) QueueRegister(name string) (uint32, uint32) {
	id, st := n.c.RegisterSharedQueue(name)
	return id, uint32(st)
}
func (n nativeHost) QueueResolve(vm, name string) (uint32, uint32) {
	id, st := n.c.ResolveSharedQueue(vm, name)
	return id, uint32(st)
}
func (n nativeHost) Enqueue(id uint32, b []byte) uint32 { return uint32(n.c.EnqueueSharedQueue(id, b)) }
func (n nativeHost) Dequeue(id uint32) ([]byte, uint32) {
	b, st := n.c.DequeueSharedQueue(id)
	return b, uint32(st)
}
func (n nativeHost) Define(t uint32, name string) (uint32, uint32) {
	id, st := n.c.DefineMetric(hostsim.MetricType(t), name)
	return id, uint32(st)
}
func (n nativeHost) Increment(id uint32, by int64) uint32 { return uint32(n.c.IncrementMetric(id, by)) }
func (n nativeHost) Record(id uint32, v uint64) uint32    { return uint32(n.c.RecordMetric(id, v)) }
func (n nativeHost) Metric(id uint32) (uint64, uint32) {
	v, st := n.c.GetMetric(id)
	return v, uint32(st)
}
func (n nativeHost) Tick(ms uint32) uint32 { return uint32(n.c.SetTickPeriod(ms)) }
func (n nativeHost) Time() uint64          { return n.c.CurrentTime() }
