// Package calls makes the ledger's calls on a gRPC stream, as a gate does. Tests and benchmarks use it.
package calls

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/oncegate/oncegate/manager/api"
)

// Call is a call without its number. Message is the raw form of the request.
type Call struct {
	Op      api.Op
	Trace   [][2]string
	Message []byte
}

// Stream is a stream on a connection of its own. Its methods may be called side by side.
type Stream struct {
	http *http.Transport
	send *io.PipeWriter
	end  context.CancelFunc
	wake chan struct{} // signals that out has something
	done sync.WaitGroup

	mu      sync.Mutex
	out     []byte // messages that are not sent yet
	number  uint64 // of the last call
	waiting map[uint64]chan<- api.StreamReply
	err     error         // why the stream ended
	ended   chan struct{} // closed then
}

// Open opens a stream to the manager at a URL without a path, in plain text. header has names and values by turns. The stream lasts
// until Close, or until ctx ends.
func Open(ctx context.Context, url string, header ...string) (*Stream, error) {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	body, send := io.Pipe()
	ctx, end := context.WithCancel(ctx)
	s := &Stream{
		http: &http.Transport{Protocols: protocols}, send: send, end: end,
		wake: make(chan struct{}, 1), waiting: make(map[uint64]chan<- api.StreamReply), ended: make(chan struct{}),
	}
	req, err := http.NewRequestWithContext(ctx, "POST", url+api.PathCalls, body)
	if err == nil {
		req.Header.Set("content-type", "application/grpc")
		req.Header.Set("te", "trailers")
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		var resp *http.Response
		if resp, err = s.http.RoundTrip(req); err == nil {
			s.done.Go(func() { s.receive(resp) })
			s.done.Go(s.write)
			return s, nil
		}
	}
	end()
	s.http.CloseIdleConnections()
	return nil, err
}

// Close ends the stream. The calls that have no reply yet fail.
func (s *Stream) Close() {
	_ = s.send.CloseWithError(io.ErrClosedPipe) // net/http notices the end of the context after that of the request
	s.end()
	s.done.Wait()
	s.http.CloseIdleConnections()
}

// CloseSend says that no calls follow, and waits until the manager has ended the stream.
func (s *Stream) CloseSend() {
	_ = s.send.Close()
	<-s.ended
}

// Err is why the stream has ended, nil as long as it has not.
func (s *Stream) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// errInOrder is of a stream that the manager has ended, or that breaks the protocol.
var errInOrder = errors.New("calls")

// InOrder reports whether an error of a stream has another reason than a broken connection.
func InOrder(err error) bool { return errors.Is(err, errInOrder) }

// Do makes calls, which are sent together, and returns their replies in the same order. The error says that the stream ended before
// all of them had come. Those that came have a status then.
func (s *Stream) Do(calls ...Call) ([]api.StreamReply, error) {
	replies, came := make([]api.StreamReply, len(calls)), make(chan api.StreamReply, len(calls))
	s.mu.Lock()
	if err := s.err; err != nil {
		s.mu.Unlock()
		return replies, err
	}
	first := s.number + 1
	for _, c := range calls {
		s.number++
		s.waiting[s.number] = came
		begin := len(s.out)
		s.out = api.AppendStreamCall(append(s.out, 0, 0, 0, 0, 0), s.number, c.Op, c.Trace, c.Message)
		binary.BigEndian.PutUint32(s.out[begin+1:], uint32(len(s.out)-begin-5))
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
	for range calls {
		var r api.StreamReply
		select {
		case r = <-came:
		case <-s.ended:
			select {
			case r = <-came: // before the end
			default:
				return replies, s.Err()
			}
		}
		replies[r.Number-first] = r
	}
	return replies, nil
}

// write sends what has gathered.
func (s *Stream) write() {
	var sending []byte
	for {
		select {
		case <-s.wake:
		case <-s.ended:
			return
		}
		s.mu.Lock()
		sending, s.out = s.out, sending[:0]
		s.mu.Unlock()
		if _, err := s.send.Write(sending); err != nil {
			return
		}
	}
}

// receive hands out replies until the stream ends.
func (s *Stream) receive(resp *http.Response) {
	in := bufio.NewReaderSize(resp.Body, 64<<10)
	var err error
	for err == nil {
		var prefix [5]byte
		if _, err = io.ReadFull(in, prefix[:]); err != nil {
			break
		}
		b := make([]byte, binary.BigEndian.Uint32(prefix[1:]))
		if _, err = io.ReadFull(in, b); err != nil {
			break
		}
		var r api.StreamReply
		if err = r.View(b); err != nil {
			err = fmt.Errorf("%w: %w", errInOrder, err)
			break
		}
		s.mu.Lock()
		came := s.waiting[r.Number]
		delete(s.waiting, r.Number)
		s.mu.Unlock()
		if came == nil {
			err = fmt.Errorf("%w: a reply to no call: %d", errInOrder, r.Number)
			break
		}
		came <- r
	}
	if err == io.EOF {
		trailer := resp.Trailer
		if trailer.Get("grpc-status") == "" {
			trailer = resp.Header // of an answer without a body
		}
		err = fmt.Errorf("%w: the stream ended with the HTTP status %d, grpc-status %q: %s", errInOrder, resp.StatusCode, trailer.Get("grpc-status"), trailer.Get("grpc-message"))
	}
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
	close(s.ended)
	_ = s.send.CloseWithError(err)
	_ = resp.Body.Close()
}
