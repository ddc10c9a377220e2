package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	types "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/redis/rueidis"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// maxBody is the longest answer that is recorded, in bytes. A longer one passes,
// and its key is answered with 410 from then on.
const maxBody = 512 << 10

// processor decides about requests.
type processor struct {
	extproc.UnimplementedExternalProcessorServer
	redis        rueidis.Client
	ttl, pending time.Duration
}

// stream is one request.
type stream struct {
	key  string   // in Redis
	mark [16]byte // fingerprint
	// The answer so far.
	status  string
	headers []*core.HeaderValue
	body    []byte
	long    bool
	held    bool // the answer's headers wait for their response
	chunks  int  // of the body, that wait for theirs
}

var (
	goOn          = &extproc.CommonResponse{}
	requestGoesOn = &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestHeaders{RequestHeaders: &extproc.HeadersResponse{Response: goOn}}}
	headersGoOn   = &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extproc.HeadersResponse{Response: goOn}}}
	bodyGoesOn    = &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseBody{ResponseBody: &extproc.BodyResponse{Response: goOn}}}
)

// Process implements the service: it is called for each request.
func (p *processor) Process(srv extproc.ExternalProcessor_ProcessServer) error {
	var s stream
	for {
		msg, err := srv.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
				return nil // a reservation without an answer holds until its TTL ends: the outcome is unknown
			}
			return err
		}
		var done bool
		switch m := msg.GetRequest().(type) {
		case *extproc.ProcessingRequest_RequestHeaders:
			done, err = p.requestHeaders(srv, &s, m.RequestHeaders)
		case *extproc.ProcessingRequest_ResponseHeaders:
			done, err = p.responseHeaders(srv, &s, m.ResponseHeaders)
		case *extproc.ProcessingRequest_ResponseBody:
			done, err = p.responseBody(srv, &s, m.ResponseBody)
		default:
			return status.Errorf(codes.InvalidArgument, "%T was not asked for", m)
		}
		if err != nil || done {
			return err
		}
	}
}

// requestHeaders reserves the key. done: nothing more is wanted of the
// request, so the stream ends and Envoy continues by itself.
func (p *processor) requestHeaders(srv extproc.ExternalProcessor_ProcessServer, s *stream, h *extproc.HttpHeaders) (done bool, err error) {
	if !s.read(h.GetHeaders().GetHeaders()) {
		return true, srv.Send(requestGoesOn)
	}
	value := append([]byte{'P'}, s.mark[:]...)
	found, err := p.redis.Do(srv.Context(), p.redis.B().Set().Key(s.key).Value(rueidis.BinaryString(value)).Nx().Get().
		Px(p.pending).Build()).AsBytes()
	switch {
	case rueidis.IsRedisNil(err): // new
		return false, srv.Send(requestGoesOn)
	case err != nil:
		return true, srv.Send(problem(503, "the ledger is away", "retry-after", "1"))
	case len(found) < 17 || !bytes.Equal(found[1:17], s.mark[:]):
		return true, srv.Send(problem(422, "the key belongs to another request"))
	case found[0] == 'P':
		return true, srv.Send(problem(409, "the request is at work, or its outcome is unknown", "retry-after", "1"))
	case found[0] == 'L':
		return true, srv.Send(problem(410, "the answer was too long to be recorded"))
	default:
		answer, err := replay(found[17:])
		if err != nil {
			return true, err
		}
		return true, srv.Send(answer)
	}
}

// responseHeaders keeps them.
func (p *processor) responseHeaders(srv extproc.ExternalProcessor_ProcessServer, s *stream, h *extproc.HttpHeaders) (done bool, err error) {
	s.headers = h.GetHeaders().GetHeaders()
	for _, v := range s.headers {
		if v.GetKey() == ":status" {
			s.status = string(v.GetRawValue())
		}
	}
	if h.GetEndOfStream() {
		if err := p.finish(context.WithoutCancel(srv.Context()), s); err != nil {
			return true, srv.Send(problem(503, "the answer could not be recorded"))
		}
		return true, srv.Send(headersGoOn)
	}
	s.held = true
	return false, nil
}

// responseBody records the answer when it is complete, and lets it go then.
func (p *processor) responseBody(srv extproc.ExternalProcessor_ProcessServer, s *stream, b *extproc.HttpBody) (done bool, err error) {
	if s.body == nil && b.GetEndOfStream() {
		s.body = b.GetBody()
	} else if !s.long {
		s.body = append(s.body, b.GetBody()...)
	}
	if len(s.body) > maxBody {
		s.long, s.body = true, nil
	}
	if b.GetEndOfStream() {
		if err := p.finish(context.WithoutCancel(srv.Context()), s); err != nil && s.held { // else it has begun to pass
			return true, srv.Send(problem(503, "the answer could not be recorded"))
		}
	}
	s.chunks++
	if s.held && !s.long && !b.GetEndOfStream() {
		return false, nil
	}
	// Envoy holds chunks while they wait, up to its buffer's limit: a long answer must
	// not wait for its end.
	if s.held {
		s.held = false
		if err := srv.Send(headersGoOn); err != nil {
			return true, err
		}
	}
	for ; s.chunks > 0; s.chunks-- {
		if err := srv.Send(bodyGoesOn); err != nil {
			return true, err
		}
	}
	return b.GetEndOfStream(), nil
}

// finish records the answer, or frees the key where upstream asks to be retried.
func (p *processor) finish(ctx context.Context, s *stream) error {
	switch s.status {
	case "408", "425", "429", "503":
		return p.redis.Do(ctx, p.redis.B().Del().Key(s.key).Build()).Error()
	}
	record, err := s.record()
	if err != nil {
		return err
	}
	return p.redis.Do(ctx, p.redis.B().Set().Key(s.key).Value(rueidis.BinaryString(record)).Px(p.ttl).Build()).Error()
}

// read takes from a request what is needed and reports whether it has a key. The key in Redis
// holds host, path and caller, as the gate's scope does.
func (s *stream) read(headers []*core.HeaderValue) bool {
	var method, host, path, caller, length, key []byte
	for _, h := range headers {
		switch h.GetKey() {
		case ":method":
			method = h.GetRawValue()
		case ":authority":
			host = h.GetRawValue()
		case ":path":
			path = h.GetRawValue()
		case "authorization":
			caller = h.GetRawValue()
		case "content-length":
			length = h.GetRawValue()
		case "idempotency-key":
			key = h.GetRawValue()
		}
	}
	if len(key) == 0 || string(method) != "POST" && string(method) != "PATCH" {
		return false
	}
	scope := digest(host, path, caller)
	s.mark = digest(method, path, length)
	s.key = string(append(append(make([]byte, 0, len(scope)+len(key)), scope[:]...), key...))
	return true
}

// record is an answer as it is kept: the state, the fingerprint, the length of the replay, the replay.
func (s *stream) record() ([]byte, error) {
	if s.long {
		return append([]byte{'L'}, s.mark[:]...), nil
	}
	code, err := strconv.ParseUint(s.status, 10, 16)
	if err != nil {
		return nil, err
	}
	set := []*core.HeaderValueOption{option("idempotent-replayed", []byte("true"))}
	for _, h := range s.headers {
		if !perConnection(h.GetKey()) {
			set = append(set, option(h.GetKey(), h.GetRawValue()))
		}
	}
	answer, err := proto.Marshal(immediate(uint32(code), set, s.body))
	if err != nil {
		return nil, err
	}
	b := append(append(make([]byte, 0, 32+len(answer)), 'C'), s.mark[:]...)
	return append(binary.AppendUvarint(b, uint64(len(answer))), answer...), nil
}

// perConnection are headers that Envoy rebuilds for each answer.
func perConnection(name string) bool {
	switch name {
	case "date", "server", "connection", "keep-alive", "transfer-encoding", "content-length", "x-envoy-upstream-service-time":
		return true
	}
	return strings.HasPrefix(name, ":")
}

// replay is the recorded answer.
func replay(b []byte) (*extproc.ProcessingResponse, error) {
	n, size := binary.Uvarint(b)
	answer := new(extproc.ProcessingResponse)
	if size <= 0 || n != uint64(len(b)-size) || proto.Unmarshal(b[size:], answer) != nil {
		return nil, status.Error(codes.DataLoss, "the record cannot be read")
	}
	return answer, nil
}

func problem(code uint32, title string, headers ...string) *extproc.ProcessingResponse {
	set := []*core.HeaderValueOption{option("content-type", []byte("application/problem+json"))}
	for i := 0; i < len(headers); i += 2 {
		set = append(set, option(headers[i], []byte(headers[i+1])))
	}
	return immediate(code, set, []byte(`{"title":"`+title+`"}`))
}

func immediate(code uint32, set []*core.HeaderValueOption, body []byte) *extproc.ProcessingResponse {
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extproc.ImmediateResponse{
		Status: &types.HttpStatus{Code: types.StatusCode(code)}, Headers: &extproc.HeaderMutation{SetHeaders: set}, Body: body,
	}}}
}

func option(name string, value []byte) *core.HeaderValueOption {
	action := core.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD
	if name == "content-type" { // Envoy's own answers have one
		action = core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD
	}
	return &core.HeaderValueOption{Header: &core.HeaderValue{Key: name, RawValue: value}, AppendAction: action}
}

// digest is 128 bits of the SHA-256 of parts, each after its length.
func digest(parts ...[]byte) [16]byte {
	b := make([]byte, 0, 256)
	for _, p := range parts {
		b = append(binary.AppendUvarint(b, uint64(len(p))), p...)
	}
	sum := sha256.Sum256(b)
	return [16]byte(sum[:16])
}
