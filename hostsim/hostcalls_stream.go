package hostsim

import "strings"

// inlineHeaders are the headers that Envoy stores in fixed slots: adding a second value appends it to the first after a
// comma.
var inlineHeaders = map[string]bool{
	":authority": true, ":method": true, ":path": true, ":scheme": true, ":status": true, "connection": true,
	"content-length": true, "content-type": true, "expect": true, "grpc-message": true, "grpc-status": true,
	"keep-alive": true, "proxy-connection": true, "te": true, "transfer-encoding": true, "upgrade": true,
	"user-agent": true, "via": true, "x-forwarded-for": true, "x-forwarded-proto": true, "x-request-id": true,
}

// readMap returns the map that a guest may read now, nil when there is none.
func (v *vm) readMap(c *vmContext, t MapType) *Headers {
	visible := func(on bool, h *Headers) *Headers {
		if on {
			return h
		}
		return nil
	}
	switch call, grpc := &v.callResponse, &v.grpcEvent; t {
	case MapHTTPCallHeaders:
		return visible(call.Headers != nil, &call.Headers)
	case MapHTTPCallTrailers:
		return visible(call.Trailers != nil, &call.Trailers)
	case MapGRPCInitialMetadata:
		return visible(grpc.metadata != nil, &grpc.metadata)
	case MapGRPCTrailingMetadata:
		return visible(grpc.trailers != nil, &grpc.trailers)
	}
	s := c.stream
	if s == nil {
		return nil
	}
	switch t {
	case MapRequestHeaders:
		return visible(s.req.seeHeaders || s.logging, &s.req.headers)
	case MapRequestTrailers:
		return visible(s.req.seeTrailers && !s.logging, &s.req.trailers)
	case MapResponseHeaders:
		return visible(s.resp.seeHeaders || s.logging, &s.resp.headers)
	case MapResponseTrailers:
		return visible(s.resp.seeTrailers || s.logging, &s.resp.trailers)
	}
	return nil
}

// writeMap returns the map that a guest may change now. In the last body callback of a message without trailers, it
// creates the trailers.
func (v *vm) writeMap(c *vmContext, t MapType) *Headers {
	s := c.stream
	if s == nil {
		return nil
	}
	h := &s.req
	if t == MapResponseHeaders || t == MapResponseTrailers {
		h = &s.resp
	}
	switch t {
	case MapRequestHeaders, MapResponseHeaders:
		if h.seeHeaders {
			return &h.headers
		}
	case MapRequestTrailers, MapResponseTrailers:
		if !h.seeTrailers && !h.haveTrailers && h.body != nil && s.endFlag {
			h.haveTrailers, h.seeTrailers, h.trailers = true, true, Headers{}
		}
		if h.seeTrailers {
			return &h.trailers
		}
	}
	return nil
}

// change changes a map by f, which adds some bytes; negative for a change whose size is not bounded.
func (v *vm) change(t MapType, added int, f func(*Headers)) Status {
	c := v.ctx()
	m := v.writeMap(c, t)
	if m == nil {
		return StatusBadArgument
	}
	if added >= 0 && m.Bytes()+added > headerMapLimit {
		return StatusInternalFailure
	}
	f(m)
	if t == MapRequestHeaders {
		c.stream.clearRoute()
	}
	return StatusOK
}

// GetHeaderMapValue implements HostCalls.
func (v *vm) GetHeaderMapValue(t MapType, key string) (string, Status) {
	c := v.ctx()
	if t > mapTypeMax {
		return "", StatusBadArgument
	}
	m := v.readMap(c, t)
	if m == nil {
		if c.stream != nil && c.stream.logging {
			return "", StatusNotFound
		}
		return "", StatusBadArgument
	}
	value, ok := m.Lookup(strings.ToLower(key))
	if !ok {
		return "", StatusNotFound
	}
	return value, StatusOK
}

// GetHeaderMapPairs implements HostCalls. A map that is not available now is returned as an empty one.
func (v *vm) GetHeaderMapPairs(t MapType) (Headers, Status) {
	c := v.ctx()
	if t > mapTypeMax {
		return nil, StatusBadArgument
	}
	if m := v.readMap(c, t); m != nil {
		return m.Clone(), StatusOK
	}
	return nil, StatusOK
}

// GetHeaderMapSize implements HostCalls. It returns the bytes of names and values of a map that could be changed now.
func (v *vm) GetHeaderMapSize(t MapType) (uint32, Status) {
	c := v.ctx()
	if t > mapTypeMax {
		return 0, StatusBadArgument
	}
	m := v.writeMap(c, t)
	if m == nil {
		return 0, StatusBadArgument
	}
	return uint32(m.Bytes()), StatusOK
}

// AddHeaderMapValue implements HostCalls.
func (v *vm) AddHeaderMapValue(t MapType, key, value string) Status {
	return v.change(t, len(key)+len(value), func(m *Headers) { addHeader(m, strings.ToLower(key), value) })
}

func addHeader(m *Headers, key, value string) {
	if inlineHeaders[key] {
		if old, ok := m.Lookup(key); ok {
			m.Set(key, old+","+value)
			return
		}
	}
	m.Add(key, value)
}

// ReplaceHeaderMapValue implements HostCalls.
func (v *vm) ReplaceHeaderMapValue(t MapType, key, value string) Status {
	return v.change(t, len(key)+len(value), func(m *Headers) { m.Set(strings.ToLower(key), value) })
}

// RemoveHeaderMapValue implements HostCalls.
func (v *vm) RemoveHeaderMapValue(t MapType, key string) Status {
	return v.change(t, -1, func(m *Headers) { m.Del(strings.ToLower(key)) })
}

// SetHeaderMapPairs implements HostCalls.
func (v *vm) SetHeaderMapPairs(t MapType, h Headers) Status {
	return v.change(t, -1, func(m *Headers) {
		*m = make(Headers, 0, len(h))
		for _, p := range h {
			addHeader(m, strings.ToLower(p[0]), p[1])
		}
	})
}

// guestBuffer is a buffer as a guest sees it: the bytes and, if it can be changed, the half it belongs to.
type guestBuffer struct {
	bytes []byte
	half  *half
	held  bool    // it is the half's collected buffer, not the current piece
	edit  *[]byte // a buffer of the plugin that can be changed
}

// buffer finds a buffer. nil means that it is not available now (NotFound), which differs from an empty one.
func (v *vm) buffer(c *vmContext, t BufferType) *guestBuffer {
	switch t {
	case BufferRequestBody, BufferResponseBody:
		if c.stream == nil {
			return &guestBuffer{}
		}
		h := &c.stream.req
		if t == BufferResponseBody {
			h = &c.stream.resp
		}
		switch {
		case h.buffering:
			return &guestBuffer{bytes: h.buffer, half: h, held: true}
		case h.stale:
			c.stream.violation(h.dirName() + " body accessed outside of its callback, which did not pause to buffer; Envoy uses freed memory here")
		}
		if h.body != nil {
			return &guestBuffer{bytes: *h.body, half: h}
		}
		return &guestBuffer{}
	case BufferHTTPCallBody:
		if v.callResponse.Headers != nil {
			return &guestBuffer{bytes: v.callResponse.Body}
		}
	case BufferVMConfig:
		return &guestBuffer{bytes: v.host.cfg.VMConfig}
	case BufferPluginConfig:
		if v.configuring {
			return &guestBuffer{bytes: v.host.cfg.PluginConfig}
		}
	case BufferGRPCMessage:
		if v.grpcEvent.inMessage {
			return &guestBuffer{bytes: v.grpcEvent.message, edit: &v.grpcEvent.message}
		}
		return &guestBuffer{}
	case BufferDownstreamData, BufferUpstreamData, BufferCallData:
		return &guestBuffer{}
	}
	return nil
}

// GetBufferBytes implements HostCalls.
func (v *vm) GetBufferBytes(t BufferType, start, length uint32) ([]byte, Status) {
	c := v.ctx()
	if t > bufferTypeMax {
		return nil, StatusBadArgument
	}
	b := v.buffer(c, t)
	if b == nil {
		return nil, StatusNotFound
	}
	// Lengths are 64 bits wide in the host, so the sum of two 32-bit numbers never overflows. The result ends at the
	// end of the buffer.
	from, to, size := uint64(start), uint64(start)+uint64(length), uint64(len(b.bytes))
	if from >= size {
		return nil, StatusOK
	}
	return b.bytes[from:min(to, size)], StatusOK
}

// GetBufferStatus implements HostCalls.
func (v *vm) GetBufferStatus(t BufferType) (uint32, Status) {
	c := v.ctx()
	if t > bufferTypeMax {
		return 0, StatusBadArgument
	}
	b := v.buffer(c, t)
	if b == nil {
		return 0, StatusNotFound
	}
	return uint32(len(b.bytes)), StatusOK
}

// SetBufferBytes implements HostCalls. Envoy knows three edits: prepend (start and
// length 0), replace all (start 0, length not below the size) and append (start not
// below the size); any other range is BadArgument.
func (v *vm) SetBufferBytes(t BufferType, start, length uint32, value []byte) Status {
	c := v.ctx()
	if t > bufferTypeMax {
		return StatusBadArgument
	}
	b := v.buffer(c, t)
	if b == nil {
		return StatusNotFound
	}
	if b.half == nil && b.edit == nil {
		return StatusBadArgument
	}
	size := uint64(len(b.bytes))
	if len(b.bytes)+len(value) > bufferEditLimit {
		return StatusInternalFailure
	}
	var out []byte
	switch {
	case start == 0 && length == 0:
		out = append(append(make([]byte, 0, len(value)+len(b.bytes)), value...), b.bytes...)
	case start == 0 && uint64(length) >= size:
		out = append([]byte{}, value...)
	case start != 0 && uint64(start) >= size:
		out = append(b.bytes[:size:size], value...)
	default:
		return StatusBadArgument
	}
	switch {
	case b.edit != nil:
		*b.edit = out
	case b.held:
		b.half.replace(out)
	default:
		*b.half.body = out
	}
	return StatusOK
}

// ContinueStream implements HostCalls. After it, the request's maps and body are inaccessible, whichever side is
// resumed.
func (v *vm) ContinueStream(t StreamType) Status {
	c := v.ctx()
	switch t {
	case StreamTypeRequest, StreamTypeResponse:
		if s := c.stream; s != nil {
			kind := afterContinueRequest
			if t == StreamTypeResponse {
				kind = afterContinueResponse
			}
			if st := v.later(afterAction{kind: kind, stream: s}); st != StatusOK {
				return st
			}
			s.req.seeHeaders, s.req.seeTrailers, s.req.body, s.req.stale = false, false, nil, false
		}
		return StatusOK
	case StreamTypeDownstream:
		return StatusOK
	case StreamTypeUpstream:
		return StatusUnimplemented
	}
	return StatusBadArgument
}

// CloseStream implements HostCalls.
func (v *vm) CloseStream(t StreamType) Status {
	c := v.ctx()
	if t > StreamTypeUpstream {
		return StatusBadArgument
	}
	if s := c.stream; s != nil && t <= StreamTypeResponse {
		return v.later(afterAction{kind: afterClose, stream: s})
	}
	return StatusOK
}

// SendLocalResponse implements HostCalls. It always returns Ok and stops the iteration, whatever the callback returns.
func (v *vm) SendLocalResponse(code uint32, details string, body []byte, headers Headers, grpcStatus int32) Status {
	c := v.ctx()
	v.stopIteration = true
	s := c.stream
	if s == nil {
		return StatusOK
	}
	if len(v.after) >= afterLimit {
		return StatusInternalFailure
	}
	r := &localReply{
		code: int(code), body: append([]byte(nil), body...), headers: make(Headers, 0, len(headers)),
		details: strings.ReplaceAll(details, " ", "_"), grpcStatus: -1,
	}
	for _, p := range headers {
		r.headers.Add(strings.ToLower(p[0]), p[1])
	}
	if grpcStatus >= 0 && grpcStatus <= 16 {
		r.grpcStatus = int(grpcStatus)
	}
	v.after = append(v.after, afterAction{kind: afterReply, stream: s, reply: r})
	return StatusOK
}
