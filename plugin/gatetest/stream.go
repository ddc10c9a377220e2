package gatetest

import (
	"bytes"
	"context"
	"sync"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/managertest/simulated"
)

// stream is a gate's gRPC stream to the manager.
type stream struct {
	m        *Manager
	number   int
	thread   string
	metadata hostsim.Headers
	about    Call // what the metadata say about all calls

	mu     sync.Mutex
	events hostsim.StreamEvents
	ended  bool
}

// Call implements hostsim.Cluster: the gate makes no HTTP callouts to a manager.
func (m *Manager) Call(context.Context, hostsim.CallRequest, func(hostsim.CallResponse)) error {
	return hostsim.ErrNoHealthyHost
}

// OpenStream implements hostsim.GRPCCluster.
func (m *Manager) OpenStream(ctx context.Context, req hostsim.StreamRequest, events hostsim.StreamEvents) (hostsim.GRPCStream, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return nil, hostsim.ErrNoHealthyHost
	}
	m.opened++
	s := &stream{m: m, number: m.opened, thread: req.Thread, metadata: req.Metadata, events: events}
	s.about = Call{
		Thread: req.Thread, Authority: req.Authority, Authorization: req.Metadata.Get("authorization"), Shard: req.Metadata.Get(api.HeaderShard),
		Large: req.Metadata.Get(api.HeaderStream) == api.StreamLarge, Stream: s.number,
	}
	m.streams[s] = true
	context.AfterFunc(ctx, s.Reset)
	return s, nil
}

// Streams returns how many streams are open, and how many were opened.
func (m *Manager) Streams() (open, opened int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.streams), m.opened
}

// GoAway stops the manager: its streams end, and no other can be opened until ComeBack.
func (m *Manager) GoAway() {
	m.mu.Lock()
	m.down = true
	m.mu.Unlock()
	m.CutStreams(14)
}

// ComeBack ends what GoAway began.
func (m *Manager) ComeBack() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = false
}

// CutStreams ends all streams with a gRPC status.
func (m *Manager) CutStreams(status int) {
	m.mu.Lock()
	var all []*stream
	for s := range m.streams {
		all = append(all, s)
	}
	m.mu.Unlock()
	for _, s := range all {
		s.end(status)
	}
}

// end ends the stream with a gRPC status.
func (s *stream) end(status int) {
	if s.leave() {
		s.events.Close(status, "")
	}
}

// leave reports whether the stream was open until now.
func (s *stream) leave() bool {
	s.m.mu.Lock()
	delete(s.m.streams, s)
	s.m.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.ended = true
	return true
}

// Reset implements hostsim.GRPCStream.
func (s *stream) Reset() { s.leave() }

// Send implements hostsim.GRPCStream.
func (s *stream) Send(message []byte, _ bool) {
	s.mu.Lock()
	ended := s.ended
	s.mu.Unlock()
	if ended {
		return
	}
	var in api.StreamCall
	if in.View(bytes.Clone(message)) != nil {
		s.end(3)
		return
	}
	if in.Op == api.OpPing {
		s.reply(in.Number, simulated.Answer{Status: 200})
		return
	}
	c := s.about
	c.Path = pathOf(in.Op)
	headers := []api.Header{{Name: "content-type", Value: api.ContentTypeRaw}, {Name: "accept", Value: api.ContentTypeRaw}}
	for _, h := range s.metadata {
		headers = append(headers, api.Header{Name: h[0], Value: h[1]})
	}
	var id, parent string
	for _, h := range in.Trace {
		switch h.Name {
		case "x-request-id":
			id = h.Value
		case "traceparent":
			parent = h.Value
		}
	}
	c.Trace = id + " " + parent
	headers = append(headers, in.Trace...)
	raw := c.read(in.Message)
	h := new(heldCall)
	m := s.m
	m.mu.Lock()
	f := m.arrive(c, h)
	m.mu.Unlock()
	m.carryOut(f, h, func(answer func(simulated.Answer)) {
		m.handle(&c, headers, raw, func(a simulated.Answer) { answer(s.fit(a)) })
	},
		func(a simulated.Answer) { s.reply(in.Number, a) }, s.end)
}

// fit returns the answer that the stream takes.
func (s *stream) fit(a simulated.Answer) simulated.Answer {
	if !s.about.Large && len(a.Body) > api.MaxSmallReply && a.Status < 300 {
		a.Status, a.Body = 503, problem(503, api.CodeLargeAnswer)
	}
	return a
}

// reply sends a reply, as the manager would.
func (s *stream) reply(number uint64, a simulated.Answer) {
	mark := ""
	for _, h := range a.Headers {
		if h.Name == api.HeaderLedger {
			mark = h.Value
		}
	}
	s.mu.Lock()
	ended := s.ended
	s.mu.Unlock()
	if !ended {
		s.events.Message(api.AppendStreamReply(nil, number, a.Status, a.RetryAfter, mark, a.Body))
	}
}

func pathOf(op api.Op) string {
	if op == api.OpLookUp {
		return api.PathLookUp
	}
	return op.Path()
}
