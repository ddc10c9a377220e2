package envoydiff

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// --- hostsim ---

// simSite is a site's host.
type simSite struct {
	host   *hostsim.Host
	route  func(hostsim.Headers) hostsim.Route
	callee *hostsimtest.Cluster
	rpc    *simRPC
	log    *simLog
}

func startSim(t *testing.T, s *site, guest hostsim.Source) *simSite {
	sim := &simSite{callee: &hostsimtest.Cluster{}, rpc: &simRPC{}, log: &simLog{tb: t}}
	sim.route = func(hostsim.Headers) hostsim.Route { return hostsim.Route{Name: "route", Cluster: s.name} }
	backoff := s.backoff
	if backoff == shortBackoff {
		backoff = 1 // Envoy has been up for longer than the host
	}
	sim.host = hostsimtest.Start(t, hostsim.Config{
		Guest: guest, VMID: s.name, PluginName: s.name, RootID: s.name, PluginConfig: []byte(s.plugin),
		AllowOnHeadersStopIteration: s.allow, BufferLimit: s.limit, FailurePolicy: policies[s.policy], StreamIdleTimeout: s.idle, MaxNestedReplies: s.nested, ReloadBackoff: backoff,
		Clusters: map[string]hostsim.Cluster{
			s.name + "_c": sim.callee,
			s.name + "_g": &hostsimtest.Cluster{StreamHandler: sim.rpc.open},
			s.name + "_gone": &hostsimtest.Cluster{StreamHandler: func(s *hostsimtest.ServerStream) {
				s.Fail(hostsim.UpstreamConnectFailed, "delayed connect error: Connection refused", false)
			}},
			s.name + "_empty": &hostsimtest.Cluster{RefuseStream: func(hostsim.StreamRequest) error { return hostsim.ErrNoHealthyHost }},
			s.name + "_full":  &hostsimtest.Cluster{StreamHandler: sim.rpc.open, RefuseStream: sim.rpc.full},
		},
		Logger: slog.New(sim.log), Seed: 1,
	})
	sim.log.take()
	return sim
}

var policies = map[string]hostsim.FailurePolicy{
	"FAIL_CLOSED": hostsim.FailClosed, "FAIL_OPEN": hostsim.FailOpen, "FAIL_RELOAD": hostsim.FailReload,
}

type simStream struct {
	*hostsimtest.Stream
	started bool // upstream has sent headers
}

type simWorld struct {
	*simSite
	show    []string
	blind   bool
	streams map[string]*simStream
	backlog []step // what flow control has kept from being sent
	guest   []string
}

func (w *simWorld) do(tb testing.TB, s step) {
	switch s.verb {
	case "get", "post", "whole":
		// What Envoy's codec makes of the request of realWorld.
		h := hostsim.H(":authority", "example.test", ":path", "/"+s.stream, ":method", "POST", ":scheme", "http", "x-script", s.script())
		st := &simStream{Stream: hostsimtest.OpenWith(tb, w.host, hostsim.StreamOptions{Route: w.route})}
		w.streams[s.stream] = st
		if s.verb == "whole" {
			h.Add("content-length", "3")
			st.Stream.Stream.Request(h, []byte("abc"))
			break
		}
		st.RequestHeaders(h, s.verb == "get")
	case "rpc":
		w.rpc.do(tb, s.arg)
		hostsimtest.Settle(tb, w.host)
		return
	case "answer", "hangup":
		if w.callee.Pending() == 0 {
			tb.Error("hostsim has made no callout")
			return
		}
		call, err := w.callee.Next(context.Background())
		if err != nil {
			tb.Fatal(err)
		}
		if s.verb == "hangup" {
			call.Fail(hostsim.CallReset)
			break
		}
		status, body, _ := strings.Cut(s.arg, " ")
		call.Reply(hostsimtest.Answer(status, body, "content-length", fmt.Sprint(len(body)), "x-envoy-upstream-service-time", "0"))
	case "await":
		for deadline := time.Now().Add(*patience); !strings.Contains(w.view(tb).String(), s.arg); {
			if time.Now().After(deadline) {
				tb.Errorf("hostsim never showed %q", s.arg)
				break
			}
			runtime.Gosched()
		}
	default:
		st := w.streams[s.stream]
		if st == nil {
			tb.Fatalf("no stream %q", s.stream)
		}
		w.backlog = append(w.backlog, s)
	}
	hostsimtest.Settle(tb, w.host)
	// What the backlog's first can not send, later ones of its stream must not overtake.
	for i := 0; i < len(w.backlog); {
		s := w.backlog[i]
		if !w.ready(i) {
			i++
			continue
		}
		w.backlog = slices.Delete(w.backlog, i, i+1)
		feed(tb, w.streams[s.stream], s)
		hostsimtest.Settle(tb, w.host)
		i = 0
	}
}

// ready reports whether the window of a backlog's step is open, as that of a codec is
// that may read its socket.
func (w *simWorld) ready(i int) bool {
	s := w.backlog[i]
	side := s.side()
	for _, earlier := range w.backlog[:i] {
		if earlier.stream == s.stream && side != "" && side == earlier.side() {
			return false
		}
	}
	switch side {
	case "client":
		return w.streams[s.stream].RequestWindowOpen()
	case "upstream":
		return w.streams[s.stream].ResponseWindowOpen()
	}
	return true
}

func feed(tb testing.TB, st *simStream, s step) {
	k, v := pair(s.arg)
	switch s.verb {
	case "send":
		st.RequestData(payload(tb, s.arg), false)
	case "finish":
		st.RequestData(nil, true)
	case "trailers":
		st.RequestTrailers(hostsim.H(k, v))
	case "leave":
		st.ClientReset()
	case "status":
		code, end, _ := strings.Cut(s.arg, " ")
		h := hostsim.H(":status", code, "transfer-encoding", "chunked", "x-envoy-upstream-service-time", "0")
		if end != "" {
			h[1] = [2]string{"content-length", "0"}
		}
		st.started = true
		st.UpstreamSelected("127.0.0.1:1")
		st.ResponseHeaders(h, end != "")
	case "write":
		st.ResponseData(payload(tb, s.arg), false)
	case "writefinish":
		st.ResponseData(nil, true)
	case "writetrailers":
		st.ResponseTrailers(hostsim.H(k, v))
	case "break":
		failure := hostsim.UpstreamDisconnected
		if st.started {
			failure = hostsim.UpstreamProtocolError
		}
		st.UpstreamFailed(failure, "")
	default:
		tb.Fatalf("unknown step %q", s.verb)
	}
}

func (w *simWorld) view(testing.TB) view {
	w.guest = append(w.guest, w.log.take()...)
	v := view{guest: w.guest, calls: w.callee.Pending(), peers: map[string]string{}}
	if !w.blind {
		w.rpc.view(w.show, v.peers)
	}
	for name, st := range w.streams {
		up := st.Up.Message()
		if up.Headers != nil && !w.blind {
			v.peers[name+" up"] = w.message(up.Headers.Get(":method")+" "+up.Headers.Get(":path"), up)
		}
		down := st.Down.Message()
		if down.Headers != nil || down.Reset != "" {
			v.peers[name+" down"] = w.message(down.Status(), down)
		}
	}
	return v
}

func (w *simWorld) message(first string, m hostsimtest.Message) string {
	text := first
	for _, name := range w.show {
		if name == "connection" && m.Early {
			text = join(text, "connection=close")
		}
		if m.Headers.Has(name) {
			text = join(text, name+"="+strings.Join(m.Headers.Values(name), ","))
		}
	}
	text = join(text, show(m.Body))
	for _, p := range m.Trailers {
		text = join(text, "trailer", p[0]+"="+p[1])
	}
	switch {
	case m.Reset != "":
		text = join(text, "cut")
	case m.Ended:
		text = join(text, "end")
	}
	return text
}

func (w *simWorld) end(tb testing.TB) {
	for _, st := range w.streams {
		st.ClientReset()
	}
	w.rpc.forget()
	hostsimtest.Settle(tb, w.host)
	w.log.take()
	for w.callee.Pending() > 0 { // calls that have timed out
		if _, err := w.callee.Next(context.Background()); err != nil {
			tb.Fatal(err)
		}
	}
}

// simLog keeps what the guest logs, and traps.
type simLog struct {
	tb    testing.TB
	mu    sync.Mutex
	lines []string
}

func (l *simLog) Enabled(context.Context, slog.Level) bool { return true }
func (l *simLog) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *simLog) WithGroup(string) slog.Handler            { return l }

func (l *simLog) Handle(_ context.Context, rec slog.Record) error {
	attrs := map[string]string{}
	rec.Attrs(func(a slog.Attr) bool { attrs[a.Key] = a.Value.String(); return true })
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case strings.HasPrefix(attrs["message"], "panic: "):
	case rec.Message == "wasm log":
		l.lines = append(l.lines, attrs["message"])
	case attrs["callback"] != "":
		l.lines = append(l.lines, "trap in "+attrs["callback"])
	default:
		l.tb.Log(rec.Message, attrs)
	}
	return nil
}

func (l *simLog) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines
	l.lines = nil
	return lines
}

// --- Envoy ---

type realStream struct {
	client, upstream peer
	answered         bool // the upstream's answer is complete
}

// answer records that the upstream's answer is complete, unless Envoy hung up before.
func (st *realStream) answer(complete bool) { st.answered = complete && !st.upstream.closed }

type realWorld struct {
	e       *envoy
	site    *site
	show    []string
	blind   bool
	streams map[string]*realStream
	unnamed []*peer // upstream connections whose request has not come yet
	callees []*peer
	guest   []string
}

func (w *realWorld) do(tb testing.TB, s step) {
	switch s.verb {
	case "get", "post", "whole":
		st := &realStream{}
		st.client.conn = w.e.dial(tb, w.site.name)
		w.streams[s.stream] = st
		rest := map[string]string{"get": "\r\n", "post": "transfer-encoding: chunked\r\n\r\n", "whole": "content-length: 3\r\n\r\nabc"}
		st.client.send("POST /%s HTTP/1.1\r\nhost: example.test\r\nx-script: %s\r\n%s", s.stream, s.script(), rest[s.verb])
		return
	case "rpc":
		w.site.server.do(tb, s.arg)
		return
	case "answer", "hangup":
		if len(w.callees) == 0 {
			tb.Error("Envoy has made no callout")
			return
		}
		p := w.callees[0]
		w.callees = w.callees[1:]
		if s.verb == "answer" {
			status, body, _ := strings.Cut(s.arg, " ")
			p.send("HTTP/1.1 %s X\r\ncontent-length: %d\r\n\r\n%s", status, len(body), body)
		}
		p.close()
		return
	case "await": // what hostsim shows is what is awaited
		return
	}
	st := w.streams[s.stream]
	if st == nil {
		tb.Fatalf("no stream %q", s.stream)
	}
	up := &st.upstream
	switch s.verb {
	case "status", "write", "writefinish", "writetrailers", "break":
		if up.conn == nil {
			tb.Errorf("%s %s: no request has come to the upstream", s.verb, s.arg)
			return
		}
	}
	switch s.verb {
	case "send":
		b := payload(tb, s.arg)
		st.client.send("%x\r\n%s\r\n", len(b), b)
	case "finish":
		st.client.send("0\r\n\r\n")
	case "trailers":
		k, v := pair(s.arg)
		st.client.send("0\r\n%s: %s\r\n\r\n", k, v)
	case "leave":
		st.client.close()
		st.client.conn = nil
	case "status":
		code, end, _ := strings.Cut(s.arg, " ")
		st.answer(end != "")
		up.send("HTTP/1.1 %s X\r\n%s\r\n\r\n", code, map[bool]string{true: "content-length: 0", false: "transfer-encoding: chunked"}[end != ""])
	case "write":
		b := payload(tb, s.arg)
		up.send("%x\r\n%s\r\n", len(b), b)
	case "writefinish":
		st.answer(true)
		up.send("0\r\n\r\n")
	case "writetrailers":
		st.answer(true)
		k, v := pair(s.arg)
		up.send("0\r\n%s: %s\r\n\r\n", k, v)
	case "break":
		st.answer(true)
		up.close()
	default:
		tb.Fatalf("unknown step %q", s.verb)
	}
}

// poll takes in what has come.
func (w *realWorld) poll(tb testing.TB) {
	w.guest = append(w.guest, w.e.guestLines(tb, w.site.name)...)
	for _, c := range w.site.upstreams.take() {
		w.unnamed = append(w.unnamed, &peer{conn: c})
	}
	for _, c := range w.site.callees.take() {
		w.callees = append(w.callees, &peer{conn: c})
	}
	w.unnamed = slices.DeleteFunc(w.unnamed, func(p *peer) bool {
		p.drain(tb)
		m := parseMessage(tb, p.raw, false)
		if m == nil {
			return p.closed
		}
		path := strings.TrimPrefix(strings.Fields(m.first)[1], "/")
		if st := w.streams[path[:1]]; st != nil {
			st.upstream = *p
		}
		return true
	})
	for _, st := range w.streams {
		st.client.drain(tb)
		st.upstream.drain(tb)
	}
}

func (w *realWorld) view(tb testing.TB) view {
	w.poll(tb)
	v := view{guest: w.guest, calls: len(w.callees), peers: map[string]string{}}
	if w.site.server != nil && !w.blind {
		w.site.server.view(tb, w.show, v.peers)
	}
	for name, st := range w.streams {
		if m := parseMessage(tb, st.upstream.raw, false); m != nil && !w.blind {
			f := strings.Fields(m.first)
			v.peers[name+" up"] = w.message(f[0]+" "+f[1], m, st.upstream.closed && !(st.answered && m.ended))
		}
		cut := st.client.closed
		if m := parseMessage(tb, st.client.raw, true); m != nil {
			v.peers[name+" down"] = w.message(strings.Fields(m.first)[1], m, cut && !m.ended)
		} else if cut {
			v.peers[name+" down"] = "cut"
		}
	}
	return v
}

func (w *realWorld) message(first string, m *wireMessage, cut bool) string {
	text := first
	for _, name := range w.show {
		if values := m.headers.Values(name); len(values) > 0 {
			text = join(text, name+"="+strings.Join(values, ","))
		}
	}
	text = join(text, show(m.body))
	for _, t := range m.trailers {
		text = join(text, "trailer", strings.Replace(t, ": ", "=", 1))
	}
	switch {
	case cut:
		text = join(text, "cut")
	case m.ended:
		text = join(text, "end")
	}
	return text
}

func (w *realWorld) end(tb testing.TB) {
	for _, st := range w.streams {
		st.client.close()
		st.upstream.close()
	}
	for _, p := range slices.Concat(w.unnamed, w.callees) {
		p.close()
	}
	if w.site.server != nil {
		w.site.server.forget()
	}
}
