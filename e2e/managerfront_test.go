package e2e

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
)

// managerFront stands before a manager. It passes the gates' streams on, and gives faults to calls about chosen keys.
type managerFront struct {
	address string
	manager string
	client  *http.Client

	mu       sync.Mutex
	faults   map[keyCall]*frontFault
	refusals *frontFault     // what streams get that begin now; nil: nothing
	done     map[keyCall]int // calls that the manager carried out
	streams  map[*frontStream]bool
	opened   int // so many streams
}

// keyCall is a kind of call about a key.
type keyCall struct {
	op  api.Op
	key string
}

// frontFault is a fault that is given to calls about a key.
type frontFault struct {
	managerFault
	carryOut bool // ask the manager before
	once     bool // to one call only
	lifted   chan struct{}
	met      chan struct{} // closed when the fault is met
	meet     sync.Once
}

// frontStream is a gate's stream.
type frontStream struct {
	conn net.Conn
	r    *http.Request

	mu     sync.Mutex
	w      http.ResponseWriter
	begun  bool          // the gate has got something
	mute   bool          // it gets nothing more
	ended  chan struct{} // closed when the stream must end
	end    sync.Once
	broken bool // it ends without a status
}

func newManagerFront(t *testing.T, manager string) *managerFront {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	f := &managerFront{
		manager: manager, client: &http.Client{Transport: transport},
		faults: map[keyCall]*frontFault{}, done: map[keyCall]int{}, streams: map[*frontStream]bool{},
	}
	type connKey struct{}
	server := unstartedBoth(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.serve(&frontStream{conn: r.Context().Value(connKey{}).(net.Conn), r: r, w: w, ended: make(chan struct{})})
	}))
	server.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
	server.Start()
	f.address = server.Listener.Addr().String()
	t.Cleanup(func() {
		f.mu.Lock()
		faults := f.faults
		f.faults, f.refusals = map[keyCall]*frontFault{}, nil
		f.mu.Unlock()
		for _, one := range faults {
			close(one.lifted)
		}
		f.cut()
		server.Close()
		transport.CloseIdleConnections()
	})
	return f
}

// fail gives a fault to calls about a key, until lift is called.
func (f *managerFront) fail(op api.Op, key string, fault managerFault, carryOut, once bool) (one *frontFault, lift func()) {
	one = &frontFault{managerFault: fault, carryOut: carryOut, once: once, lifted: make(chan struct{}), met: make(chan struct{})}
	at := keyCall{op, key}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults[at] = one
	return one, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.refusals == one {
			f.refusals = nil
		}
		if f.faults[at] == one {
			delete(f.faults, at)
			close(one.lifted)
		}
	}
}

// carriedOut is how many calls about a key the manager carried out.
func (f *managerFront) carriedOut(op api.Op, key string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.done[keyCall{op, key}]
}

// cut resets all streams.
func (f *managerFront) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.streams {
		s.abort()
	}
}

// keyOf reads the key in a call.
func keyOf(op api.Op, message []byte) (string, error) {
	switch op {
	case api.OpPing:
		return "", nil
	case api.OpReserve, api.OpRenew, api.OpUnknown:
		var r api.ReserveRequest
		err := r.ParseRaw(message)
		return r.Key, err
	case api.OpRelease, api.OpLookUp:
		var r api.ReleaseRequest
		err := r.ParseRaw(message)
		return r.Key, err
	default:
		var r api.FinishRequest
		err := r.ParseRaw(message)
		return r.Key, err
	}
}

// readFrame reads a message of gRPC.
func readFrame(r io.Reader) ([]byte, error) {
	var prefix [5]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(prefix[1:]))
	_, err := io.ReadFull(r, b)
	return b, err
}

// frame puts a prefix before a message.
func frame(message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// serve serves a stream until it must end, or the gate has left.
func (f *managerFront) serve(s *frontStream) {
	if s.r.URL.Path != api.PathCalls {
		http.NotFound(s.w, s.r)
		return
	}
	f.mu.Lock()
	f.opened++
	refusal := f.refusals
	if refusal != nil && refusal.once {
		f.refusals = nil
	}
	f.streams[s] = true
	f.mu.Unlock()
	if refusal != nil {
		refusal.strike(s, 0)
	}
	ctx, cancel := context.WithCancel(s.r.Context())
	if refusal == nil || refusal.goesOn {
		go func() { // reads until serve has returned
			if err := f.pass(ctx, s); err != nil {
				s.abort()
			}
		}()
	}
	select {
	case <-s.ended:
	case <-ctx.Done():
		s.abort()
	}
	cancel()
	s.mu.Lock()
	s.w = nil
	s.mu.Unlock()
	f.mu.Lock()
	delete(f.streams, s)
	f.mu.Unlock()
	if s.broken {
		panic(http.ErrAbortHandler)
	}
}

// pass connects a stream with the manager.
func (f *managerFront) pass(ctx context.Context, s *frontStream) error {
	body, send := io.Pipe()
	defer send.Close()
	req, err := http.NewRequestWithContext(ctx, "POST", "http://"+f.manager+api.PathCalls, body)
	if err != nil {
		return err
	}
	req.Header = s.r.Header.Clone()
	var mu sync.Mutex
	calls := map[uint64]keyCall{}
	struck := map[uint64]*frontFault{} // when the manager has answered
	var receiving sync.WaitGroup
	defer receiving.Wait()
	receiving.Go(func() {
		defer body.Close()
		resp, err := f.client.Do(req)
		if err != nil {
			s.abort()
			return
		}
		defer resp.Body.Close()
		for in := bufio.NewReader(resp.Body); ; {
			message, err := readFrame(in)
			if err != nil {
				status, _ := strconv.Atoi(resp.Trailer.Get("Grpc-Status"))
				if errors.Is(err, io.EOF) {
					s.finish(status, resp.Trailer.Get("Grpc-Message"))
				} else {
					s.abort()
				}
				return
			}
			var r api.StreamReply
			if r.View(message) != nil {
				s.abort()
				return
			}
			mu.Lock()
			c, fault := calls[r.Number], struck[r.Number]
			delete(calls, r.Number)
			delete(struck, r.Number)
			mu.Unlock()
			if r.Status < 300 && c.op != 0 {
				f.mu.Lock()
				f.done[c]++
				f.mu.Unlock()
			}
			if fault == nil {
				s.write(frame(message))
			} else if !f.strike(s, fault, r.Number) {
				return
			}
		}
	})
	for in := bufio.NewReader(s.r.Body); ; {
		message, err := readFrame(in)
		if err != nil {
			return err
		}
		var m api.StreamCall
		if err := m.View(message); err != nil {
			return err
		}
		key, err := keyOf(m.Op, m.Message)
		if err != nil {
			return err
		}
		c := keyCall{m.Op, key}
		f.mu.Lock()
		fault := f.faults[c]
		if fault != nil && fault.once {
			delete(f.faults, c)
		}
		f.mu.Unlock()
		mu.Lock()
		calls[m.Number] = c
		if fault != nil && fault.carryOut {
			struck[m.Number] = fault
		}
		mu.Unlock()
		if fault != nil && !fault.carryOut {
			if !f.strike(s, fault, m.Number) {
				return nil
			}
			continue
		}
		if _, err := send.Write(frame(message)); err != nil {
			return nil // the manager ends the stream, and has said how
		}
	}
}

// strike gives a fault to a stream instead of the reply to a call. False: the stream is over.
func (f *managerFront) strike(s *frontStream, fault *frontFault, number uint64) bool {
	fault.meet.Do(func() { close(fault.met) })
	if fault.atOpening {
		f.mu.Lock()
		f.refusals = fault
		f.mu.Unlock()
		s.abort()
		return false
	}
	fault.strike(s, number)
	if !fault.callOnly {
		s.mu.Lock()
		s.mute = true
		s.mu.Unlock()
	}
	return fault.callOnly
}

// write sends bytes of the answer's body. The gate may leave.
func (s *frontStream) write(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.w == nil || s.mute {
		return
	}
	if !s.begun {
		s.begun = true
		s.w.Header().Set("Content-Type", "application/grpc")
		s.w.Header().Set("Oncegate-Manager", "test")
	}
	_, _ = s.w.Write(b)
	_ = http.NewResponseController(s.w).Flush()
}

// answer gives an answer that is none of gRPC.
func (s *frontStream) answer(status int, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.w == nil {
		return
	}
	s.begun = true
	s.w.WriteHeader(status)
	_, _ = io.WriteString(s.w, text)
	s.end.Do(func() { close(s.ended) })
}

// finish ends the stream with a status.
func (s *frontStream) finish(status int, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.w == nil {
		return
	}
	prefix := ""
	if s.begun {
		prefix = http.TrailerPrefix
	} else {
		s.w.Header().Set("Content-Type", "application/grpc")
	}
	s.w.Header().Set(prefix+"Grpc-Status", strconv.Itoa(status))
	s.w.Header().Set(prefix+"Grpc-Message", message)
	s.end.Do(func() { close(s.ended) })
}

// abort resets the stream.
func (s *frontStream) abort() {
	s.end.Do(func() {
		s.broken = true
		close(s.ended)
	})
}
