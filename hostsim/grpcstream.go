package hostsim

import (
	"cmp"
	"context"
	"errors"
)

// guestStream is a gRPC stream of a VM. Like a callout it belongs to the plugin's root context and outlives the request
// that opened it.
type guestStream struct {
	stream GRPCStream
	cancel context.CancelFunc
	ended  bool // nothing more goes to the server
	// localClosed: the guest has closed its side with proxy_grpc_close. remoteClosed: the stream is over. Envoy forgets a
	// stream that is both, and only that.
	localClosed, remoteClosed bool
}

// grpcEvent is what a callback of a stream can read.
type grpcEvent struct {
	token              uint32
	metadata, trailers Headers
	message            []byte
	inMessage          bool
}

// GRPCStream implements HostCalls.
func (v *vm) GRPCStream(service []byte, serviceName, method string, metadata Headers) (uint32, Status) {
	v.ctx()
	name, authority, malformed := grpcService(service)
	if malformed {
		return 0, StatusParseFailure
	}
	v.lastStream += 4 // the low two bits are the kind of call: 2 is a gRPC stream
	token := v.lastStream | 2
	h := metadata.Clone()
	lowerNames(h)
	size := h.Bytes() + len(serviceName) + len(method)
	if len(v.calls)+len(v.grpcStreams) >= maxCallsPerVM || size > callBytesLimit {
		return 0, StatusInternalFailure
	}
	cluster, ok := v.host.cfg.Clusters[name].(GRPCCluster)
	if !ok {
		v.grpcRefused(token, "Cluster not available") // without the other two callbacks
		return 0, StatusInternalFailure
	}
	if v.canary {
		// The canary ends before its thread handles network events again.
		v.grpcStreams[token] = &guestStream{}
		return token, StatusOK
	}
	authority = cmp.Or(authority, name)
	ctx, cancel := context.WithCancel(v.host.ctx)
	s := &guestStream{cancel: cancel}
	v.grpcStreams[token] = s
	post := func(bytes int, f func()) {
		if v.grpcBytes.Add(int64(bytes)) > callBytesLimit {
			f = func() {
				s.reset()
				v.onGRPCClose(token, grpcCodeResourceExhausted, "too many bytes wait for the filter")
			}
		}
		v.thread.loop.post(event{kind: evFunc, f: func() {
			v.grpcBytes.Add(-int64(bytes))
			f()
		}})
	}
	var err error
	s.stream, err = cluster.OpenStream(ctx, StreamRequest{
		Cluster: name, Thread: v.name, Service: serviceName, Method: method, Authority: authority, Metadata: h,
	}, StreamEvents{
		Metadata: func(h Headers) {
			post(h.Bytes(), func() { v.onGRPC(token, onGRPCMetadata, grpcEvent{metadata: orEmpty(h)}) })
		},
		Message: func(b []byte) {
			post(len(b), func() { v.onGRPC(token, onGRPCReceive, grpcEvent{message: b, inMessage: true}) })
		},
		Trailers: func(h Headers) {
			post(h.Bytes(), func() { v.onGRPC(token, onGRPCTrailers, grpcEvent{trailers: orEmpty(h)}) })
		},
		Close: func(status int, message string) {
			post(len(message), func() { v.onGRPCClose(token, status, message) })
		},
	})
	if err != nil {
		v.forgetStream(token)
		failure := UpstreamNoHealthy
		if errors.Is(err, ErrCircuitBreaker) {
			failure = UpstreamOverflow
		}
		trailers, _, message := failure.endsStream("", false)
		v.callGRPC(token, onGRPCMetadata, grpcEvent{metadata: Headers{}})
		v.callGRPC(token, onGRPCTrailers, grpcEvent{trailers: trailers})
		v.grpcRefused(token, message)
		return 0, StatusInternalFailure
	}
	return token, StatusOK
}

// grpcRefused lets the close callback of a stream that could not begin follow the running callback. In Envoy a worker
// hangs if it must first wait for a callback that is nested in the running one.
func (v *vm) grpcRefused(token uint32, message string) {
	_ = v.later(afterAction{kind: afterFunc, f: func() {
		if len(v.outer) == 0 {
			v.callGRPCClose(token, grpcCodeUnavailable, message)
			return
		}
		v.misused("gRPC stream refused while the close callback of another one waits for the end of the running callback; Envoy's worker hangs here")
		v.refused = append(v.refused, func() { v.grpcRefused(token, message) })
	}})
}

func (v *vm) misused(what string) {
	v.host.reportViolation(Violation{Thread: v.name, Context: v.root.id, What: what})
}

// GRPCSend implements HostCalls.
func (v *vm) GRPCSend(token uint32, message []byte, end bool) Status {
	v.ctx()
	if token&3 != 2 {
		return StatusBadArgument
	}
	s := v.grpcStreams[token]
	if s == nil {
		return StatusNotFound
	}
	if v.usable(s, token) {
		s.stream.Send(append([]byte{}, message...), end)
		s.ended = end
	}
	return StatusOK
}

// GRPCClose implements HostCalls.
func (v *vm) GRPCClose(token uint32) Status {
	v.ctx()
	s := v.grpcStreams[token]
	if s == nil {
		return unknownGRPCToken(token)
	}
	if v.usable(s, token) {
		s.stream.Send(nil, true)
		s.ended = true
	}
	s.localClosed = true
	if s.remoteClosed {
		v.forgetStream(token)
	}
	return StatusOK
}

// GRPCCancel implements HostCalls.
func (v *vm) GRPCCancel(token uint32) Status {
	v.ctx()
	s := v.grpcStreams[token]
	if s == nil {
		return unknownGRPCToken(token)
	}
	if v.grpcEvent.token == token {
		v.misused("gRPC stream cancelled in its own callback; Envoy uses freed memory if more of it came in the same read")
	} else {
		_ = v.usable(s, token)
	}
	if !s.remoteClosed {
		s.reset()
	}
	v.forgetStream(token)
	return StatusOK
}

// unknownGRPCToken: the low bits of a token say whether it is a call (1) or a stream (2).
func unknownGRPCToken(token uint32) Status {
	if kind := token & 3; kind == 1 || kind == 2 {
		return StatusNotFound
	}
	return StatusBadArgument
}

// usable reports whether the stream can take what the guest sends. Envoy keeps a stream that has ended until the guest
// closes or cancels it, but frees the memory behind it once the close callback is over.
func (v *vm) usable(s *guestStream, token uint32) bool {
	switch {
	case s.remoteClosed && v.grpcClosing != token:
		v.misused("gRPC stream used after its close callback; Envoy uses freed memory here")
	case v.grpcEvent.trailers != nil && v.grpcEvent.token == token:
		v.misused("gRPC stream used in its callback of trailing metadata; Envoy ends it twice or uses freed memory")
		return false
	}
	return !s.remoteClosed && s.stream != nil && !s.ended
}

func (s *guestStream) reset() {
	if s.stream != nil {
		s.stream.Reset()
		s.cancel()
	}
}

func (v *vm) forgetStream(token uint32) {
	if s := v.grpcStreams[token]; s != nil {
		delete(v.grpcStreams, token)
		if s.cancel != nil {
			s.cancel()
		}
	}
}

// onGRPC passes an event of a stream to the guest. An event after the end finds no stream and is dropped.
func (v *vm) onGRPC(token uint32, f *callback, e grpcEvent) {
	if s := v.grpcStreams[token]; s == nil || s.remoteClosed {
		return
	}
	v.callGRPC(token, f, e)
}

func (v *vm) callGRPC(token uint32, f *callback, e grpcEvent) {
	outer := v.grpcEvent
	v.grpcEvent, v.grpcEvent.token = e, token
	// Each event has one of the three.
	_, called := v.callback(v.root, f, token, uint32(len(e.message)+len(e.metadata)+len(e.trailers)))
	v.grpcEvent = outer
	if called {
		v.finish()
	}
}

func (v *vm) onGRPCClose(token uint32, status int, message string) {
	s := v.grpcStreams[token]
	if s == nil || s.remoteClosed {
		return
	}
	s.remoteClosed = true
	if s.cancel != nil {
		s.cancel()
	}
	v.callGRPCClose(token, status, message)
	if s.localClosed {
		v.forgetStream(token)
	}
}

func (v *vm) callGRPCClose(token uint32, status int, message string) {
	v.callCode, v.callStatus, v.grpcClosing = uint32(status), message, token
	_, called := v.callback(v.root, onGRPCClose, token, uint32(status))
	v.callStatus, v.grpcClosing = "", 0
	if called {
		v.finish()
	}
}

// closeStreams cuts the streams of a VM that ends.
func (v *vm) closeStreams() {
	for token, s := range v.grpcStreams {
		if s.remoteClosed {
			v.misused("gRPC stream that had ended was neither closed nor cancelled in its close callback; Envoy uses freed memory when the plugin ends")
		} else if s.stream != nil {
			s.stream.Reset()
		}
		v.forgetStream(token)
	}
}
