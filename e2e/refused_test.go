package e2e

import (
	"bytes"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// refusingUpstream speaks HTTP/2 and does not process the first request of each connection that it gets while refuse is set: it
// resets the stream, or says by GOAWAY that no stream was processed.
type refusingUpstream struct {
	address        string
	refuse, goAway atomic.Bool
	answered       atomic.Int32
}

func newRefusingUpstream(t *testing.T) *refusingUpstream {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	u := &refusingUpstream{address: l.Addr().String()}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			go u.serve(c)
		}
	}()
	return u
}

func (u *refusingUpstream) serve(c net.Conn) {
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	f := http2.NewFramer(c, c)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if f.WriteSettings() != nil {
		return
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() && f.WriteSettingsAck() != nil {
				return
			}
		case *http2.PingFrame:
			if !frame.IsAck() && f.WritePing(true, frame.Data) != nil {
				return
			}
		}
		h := frame.Header()
		if h.StreamID == 0 || !h.Flags.Has(http2.FlagDataEndStream) || h.Type != http2.FrameData && h.Type != http2.FrameHeaders {
			continue
		}
		switch {
		case u.refuse.Load() && u.goAway.Load():
			if f.WriteGoAway(0, http2.ErrCodeNo, nil) != nil {
				return
			}
			_, _ = io.Copy(io.Discard, c)
			return
		case u.refuse.Load():
			err = f.WriteRSTStream(h.StreamID, http2.ErrCodeRefusedStream)
		default:
			u.answered.Add(1)
			var block bytes.Buffer
			if hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: ":status", Value: "201"}) != nil {
				return
			}
			err = f.WriteHeaders(http2.HeadersFrameParam{StreamID: h.StreamID, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true})
		}
		if err != nil {
			return
		}
	}
}

// An HTTP/2 upstream that says that it has not processed a request frees the key, so a retry runs.
func TestRequestsThatUpstreamRefusedToProcessFreeTheKey(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		u := newRefusingUpstream(t)
		s := &stack{dir: t.TempDir(), target: target, mode: mode, paymentsAddr: u.address, bootstrap: upstreamHTTP2}
		s.stopAtEnd(t)
		s.startManager(t)
		s.startProxy(t)
		p := s.proxies[0]
		for _, goAway := range []bool{false, true} {
			u.goAway.Store(goAway)
			u.refuse.Store(true)
			key := newKey()
			if a := send(t, p, pay(key)); a.status != 503 {
				t.Fatalf("GOAWAY %v: %v, want 503", goAway, a)
			}
			s.awaitState(t, key, "none")
			u.refuse.Store(false)
			before := u.answered.Load()
			first := wantFirst(t, p, pay(key), 201)
			wantReplay(t, p, pay(key), first)
			if n := u.answered.Load() - before; n != 1 {
				t.Errorf("GOAWAY %v: upstream answered %d requests, want 1", goAway, n)
			}
		}
	})
}
