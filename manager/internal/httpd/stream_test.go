package httpd

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
)

// echo answers each message with itself, and a number with as many bytes.
func echo(st *Stream) {
	for m := st.Next(); m != nil; m = st.Next() {
		for _, b := range m.List {
			if string(b) == "panic" {
				panic("asked to")
			}
			m.Keep()
			st.Go(func() {
				defer m.Free()
				if n, err := strconv.Atoi(string(b)); err == nil {
					b = make([]byte, n)
				}
				st.Send(httpdtest.Frame(nil, b), 0)
			})
		}
		m.Free()
	}
}

const echoPath = "/test/Echo"

func newEcho(t *testing.T, o Options) *site {
	t.Helper()
	return newSite(t, siteOptions{server: o, routes: []Route{{Method: "POST", Path: echoPath, Roles: Gate | Plain, Stream: echo}}})
}

// wantClean waits until nothing of any stream is left.
func (s *site) wantClean() {
	s.t.Helper()
	s.Eventually("nothing is left of the streams", func() bool {
		return s.server.streams.open.Load() == 0 && s.server.streams.unsent.Load() == 0 && s.server.bodies.bytes() == 0 && s.server.load.busy.Load() == 0
	})
}

func wantEnd(t *testing.T, st *httpdtest.Stream, code StreamCode) {
	t.Helper()
	status, message := st.Status()
	if status != strconv.Itoa(int(code)) {
		t.Errorf("the stream ended with %q %q, want %d", status, message, code)
	}
}

func wantEcho(t *testing.T, st *httpdtest.Stream, message []byte) {
	t.Helper()
	if err := st.Send(message); err != nil {
		t.Fatal(err)
	}
	if got, err := st.Receive(); err != nil || !bytes.Equal(got, message) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
}

func TestStreamCarriesMessages(t *testing.T) {
	s := newEcho(t, Options{})
	st := s.Stream(httpdtest.HTTP2(t), echoPath)
	if h := st.Response.Header; h.Get("content-type") != "application/grpc" || h.Get(api.HeaderManager) != httpdtest.Version {
		t.Errorf("headers %v", h)
	}
	for _, n := range []int{0, 1, readBytes - messagePrefix, readBytes, 3 * readBytes, api.MaxStreamMessage} {
		wantEcho(t, st, bytes.Repeat([]byte{'x'}, n))
	}
	for i := range 40 { // in pieces
		if err := st.Write(httpdtest.Frame(nil, bytes.Repeat([]byte{'y'}, 35))[i : i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := st.Receive(); err != nil || len(got) != 35 {
		t.Errorf("%q, %v", got, err)
	}
	st.CloseSend()
	wantEnd(t, st, StreamOK)
	s.wantClean()
}

func TestStreamsAreRefusedBeforeTheyBegin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	writeFile(t, file, "0123456789abcdef gate\n0123456789worker worker\n")
	auth, err := NewAuth(file, false)
	if err != nil {
		t.Fatal(err)
	}
	s := newEcho(t, Options{Auth: auth, MaxConnections: 2})
	client := httpdtest.HTTP2(t)
	gate := []string{"authorization", "Bearer 0123456789abcdef"}
	want := func(status int, header ...string) {
		t.Helper()
		st := s.Stream(client, echoPath, header...)
		if st.Response.StatusCode != status || status != 200 && st.Response.Header.Get("content-type") != api.ContentTypeProblem {
			t.Errorf("%v: %d %v", header, st.Response.StatusCode, st.Response.Header)
		}
	}
	want(401)
	want(401, "authorization", "Bearer of nothing at all")
	want(403, "authorization", "Bearer 0123456789worker")
	want(415, append(gate, "content-type", "application/json")...)
	if a := s.Do("POST", echoPath, "application/grpc", "", gate...); a.Status != 415 {
		t.Errorf("HTTP/1.1: %d", a.Status)
	}
	want(200, gate...)
	want(200, gate...)
	want(503, gate...)
	s.server.Refuse("the store failed")
	want(503, gate...)
}

// What a client may not send ends its stream, before memory is taken for it.
func TestStreamEndsAfterBadMessages(t *testing.T) {
	s := newEcho(t, Options{ReadTimeout: 200 * time.Millisecond})
	client := httpdtest.HTTP2(t)
	idle := s.Stream(client, echoPath)
	for name, c := range map[string]struct {
		bytes []byte
		close bool
		want  StreamCode
	}{
		"too long":          {binary.BigEndian.AppendUint32([]byte{0}, api.MaxStreamMessage+1), false, StreamResourceExhausted},
		"4 GiB":             {[]byte{0, 255, 255, 255, 255}, false, StreamResourceExhausted},
		"compressed":        {[]byte{1, 0, 0, 0, 1, 'x'}, false, StreamUnimplemented},
		"an odd flag":       {[]byte{7, 0, 0, 0, 1, 'x'}, false, StreamUnimplemented},
		"ends in a prefix":  {[]byte{0, 0}, true, StreamInvalidArgument},
		"ends in a message": {[]byte{0, 0, 0, 0, 9, 'x'}, true, StreamInvalidArgument},
		"stalls":            {[]byte{0, 0, 0, 0, 9, 'x'}, false, StreamInvalidArgument},
		"panics":            {httpdtest.Frame(nil, []byte("panic")), false, StreamInternal},
	} {
		t.Run(name, func(t *testing.T) {
			st := s.Stream(client, echoPath)
			wantEcho(t, st, []byte("before"))
			if err := st.Write(c.bytes); err != nil {
				t.Fatal(err)
			}
			if c.close {
				st.CloseSend()
			}
			wantEnd(t, st, c.want)
		})
	}
	wantEcho(t, idle, []byte("idle for longer than the time for a message"))
	idle.CloseSend()
	wantEnd(t, idle, StreamOK)
	s.wantClean()
}

// Streams that nobody reads fill their own windows, and not that of the connection.
func TestStalledStreamsLeaveTheConnectionRoom(t *testing.T) {
	goOn := make(chan struct{})
	s := newSite(t, siteOptions{server: Options{ReadTimeout: time.Hour}, routes: []Route{
		{Method: "POST", Path: echoPath, Roles: Plain, Stream: echo},
		{Method: "POST", Path: "/test/Stall", Roles: Plain, Stream: func(st *Stream) {
			<-goOn
			echo(st)
		}},
	}})
	client := httpdtest.HTTP2(t)
	small, large := s.Stream(client, echoPath), make([]byte, 4<<20)
	var writes sync.WaitGroup
	var stalled []*httpdtest.Stream
	for range 6 {
		st := s.Stream(client, "/test/Stall")
		stalled = append(stalled, st)
		writes.Go(func() {
			if err := st.Send(large); err != nil {
				t.Error(err)
			}
		})
	}
	for range 100 {
		wantEcho(t, small, make([]byte, 32<<10))
	}
	close(goOn)
	for _, st := range stalled {
		if got, err := st.Receive(); err != nil || len(got) != len(large) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	}
	writes.Wait()
}

// Streams that bring halves of large messages share the memory for bodies, and leave others room.
func TestHalfMessagesAreBounded(t *testing.T) {
	const budget = 9 << 20 // for four halves with 2 MiB of memory each, and others
	s := newEcho(t, Options{ReadTimeout: time.Hour, MaxBodyMemory: budget})
	s.server.bodies.patience = time.Millisecond
	client, small := httpdtest.HTTP2(t), s.Stream(httpdtest.HTTP2(t), echoPath)
	half := append(binary.BigEndian.AppendUint32([]byte{0}, 16<<20), make([]byte, 1<<20)...)
	var all []*httpdtest.Stream
	for range 16 {
		st := s.Stream(client, echoPath)
		all = append(all, st)
		_ = st.Write(half) // fails if the stream ends meanwhile
		if used := s.server.bodies.bytes(); used > budget {
			t.Fatalf("%v bytes", used)
		}
	}
	s.Eventually("all but four are ended, with their memory", func() bool {
		return s.server.streams.open.Load() <= 5 && s.server.bodies.bytes() < budget-1<<19
	})
	wantEcho(t, small, []byte("small"))
	for _, st := range all {
		st.Kill()
	}
	small.CloseSend()
	wantEnd(t, small, StreamOK)
	s.wantClean()
}

// A stranger gets no memory, however much it sends.
func TestManyMessagesAreTakenAsTheyAreAnswered(t *testing.T) {
	s := newEcho(t, Options{})
	for name, c := range map[string]struct{ size, count int }{"small": {8, 200_000}, "large": {1 << 20, 100}} {
		t.Run(name, func(t *testing.T) {
			st := s.Stream(httpdtest.HTTP2(t), echoPath)
			sent := make(chan error, 1)
			go func() {
				b := make([]byte, c.size)
				var err error
				for i := 0; i < c.count && err == nil; i += 100 {
					var batch []byte
					for n := range 100 {
						binary.BigEndian.PutUint64(b, 1<<63+uint64(i+n))
						if batch = httpdtest.Frame(batch, b); len(batch) > 1<<20 {
							err = st.Write(batch)
							batch = batch[:0]
						}
					}
					if err == nil {
						err = st.Write(batch)
					}
				}
				st.CloseSend()
				sent <- err
			}()
			seen := make([]bool, c.count)
			for range c.count {
				got, err := st.Receive()
				if err != nil || len(got) != c.size {
					t.Fatal(len(got), err)
				}
				n := binary.BigEndian.Uint64(got) - 1<<63
				if n >= uint64(c.count) || seen[n] {
					t.Fatalf("%d is there twice, or was not sent", n)
				}
				seen[n] = true
			}
			if err := <-sent; err != nil {
				t.Error(err)
			}
			wantEnd(t, st, StreamOK)
		})
	}
	s.wantClean()
}

// A client that takes no replies loses its stream, and costs the other streams of its connection nothing.
func TestStreamWithoutAReaderIsReset(t *testing.T) {
	t.Parallel() // it waits for the time-out, which a busy machine must not reach on the other stream
	s := newEcho(t, Options{WriteTimeout: 2 * time.Second})
	client := httpdtest.HTTP2(t)
	lazy, other := s.Stream(client, echoPath), s.Stream(client, echoPath)
	if err := lazy.Send([]byte("30000000"), []byte("30000000"), []byte("30000000")); err != nil {
		t.Fatal(err)
	}
	s.Eventually("the stream is reset", func() bool {
		wantEcho(t, other, []byte("other"))
		if most := s.server.streams.unsent.Load(); most > maxUnsent+pieceBytes {
			t.Fatalf("%d bytes are unsent", most)
		}
		return s.server.streams.open.Load() == 1
	})
	if _, err := io.Copy(io.Discard, lazy.Response.Body); err == nil {
		t.Error("the stream ended in order")
	}
	other.CloseSend()
	wantEnd(t, other, StreamOK)
	s.wantClean()
}

// A reply for which there never is memory ends the stream instead of waiting forever.
func TestReplyWithoutMemoryEndsTheStream(t *testing.T) {
	s := newEcho(t, Options{MaxBodyMemory: 2 << 20})
	s.server.bodies.patience = time.Millisecond
	st := s.Stream(httpdtest.HTTP2(t), echoPath)
	if err := st.Send([]byte("3000000")); err != nil {
		t.Fatal(err)
	}
	wantEnd(t, st, StreamUnavailable)
	s.wantClean()
}

func TestKilledClientLeavesNothing(t *testing.T) {
	s := newEcho(t, Options{})
	client := httpdtest.HTTP2(t)
	for range 20 {
		st := s.Stream(client, echoPath)
		if err := st.Write(append(httpdtest.Frame(nil, []byte("1000000")), 0, 0, 0, 0, 9, 'x')); err != nil {
			t.Fatal(err)
		}
		st.Kill()
	}
	client.CloseIdleConnections()
	s.wantClean()
}

// A stream ends once its credentials are no longer good.
func TestStreamEndsWithItsCredentials(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	writeFile(t, file, "0123456789abcdef gate\n0123456789others gate\n0123456789remain gate\n")
	auth, err := NewAuth(file, false)
	if err != nil {
		t.Fatal(err)
	}
	s := newEcho(t, Options{Auth: auth})
	client := httpdtest.HTTP2(t)
	open := func(token string) *httpdtest.Stream {
		st := s.Stream(client, echoPath, "authorization", "Bearer "+token)
		wantEcho(t, st, []byte("before"))
		return st
	}
	gone, less, remains := open("0123456789abcdef"), open("0123456789others"), open("0123456789remain")
	if err := os.WriteFile(file, []byte("0123456789others worker\n0123456789remain gate\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := auth.Load(file); err != nil {
		t.Fatal(err)
	}
	wantEnd(t, gone, StreamUnauthenticated)
	wantEnd(t, less, StreamPermissionDenied)
	wantEcho(t, remains, []byte("after"))
}

func TestShutdownEndsStreams(t *testing.T) {
	s := newEcho(t, Options{ReadTimeout: time.Hour})
	client := httpdtest.HTTP2(t)
	idle, half := s.Stream(client, echoPath), s.Stream(client, echoPath)
	if err := half.Write([]byte{0, 0, 0, 0, 9, 'x'}); err != nil {
		t.Fatal(err)
	}
	wantEcho(t, idle, []byte("before"))
	down := s.shutdown()
	wantEnd(t, idle, StreamUnavailable)
	wantEnd(t, half, StreamUnavailable)
	if err := <-down; err != nil {
		t.Error(err)
	}
	s.wantClean()
}

func TestStreamOverTLS(t *testing.T) {
	server, cfg := tlsFor(t)
	s := newSite(t, siteOptions{tls: server, routes: []Route{{Method: "POST", Path: echoPath, Roles: Plain, Stream: echo}}})
	transport := &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	st := s.Stream(&http.Client{Transport: transport}, echoPath)
	wantEcho(t, st, []byte("secret"))
}

// FuzzStream cuts bytes into messages in two ways: all at once, and at each place.
func FuzzStream(f *testing.F) {
	f.Add(httpdtest.Frame(httpdtest.Frame(nil, []byte("a")), nil), 3)
	f.Add([]byte{0, 0, 0, 0, 9, 'x'}, 2)
	f.Add([]byte{1, 0, 0, 0, 0}, 1)
	f.Add([]byte{0, 255, 255, 255, 255}, 5)
	f.Fuzz(func(t *testing.T, b []byte, at int) {
		all, rest, need, bad := cutMessages(nil, b, maxTogether)
		size := len(rest)
		for _, m := range all {
			size += messagePrefix + len(m)
		}
		if size != len(b) || bad != nil && len(all) > 0 || need > 0 && need <= len(rest) || need > messagePrefix+api.MaxStreamMessage {
			t.Fatalf("%d messages, %d of %d bytes, need %d, %v", len(all), size, len(b), need, bad)
		}
		if at < 0 || at > len(b) || len(all) == maxTogether {
			return
		}
		first, rest, _, _ := cutMessages(nil, b[:at], maxTogether)
		second, _, _, _ := cutMessages(first, append(bytes.Clone(rest), b[at:]...), 2*maxTogether)
		if len(second) != len(all) {
			t.Fatalf("%d messages in two parts, %d at once", len(second), len(all))
		}
		for i := range all {
			if !bytes.Equal(all[i], second[i]) {
				t.Fatalf("message %d: %q and %q", i, second[i], all[i])
			}
		}
	})
}
