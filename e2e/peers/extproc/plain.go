package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// plainProcessor is the external processor as one writes it from the documentation of
// Envoy and go-redis, without a thought to what it costs.
//
// Each message of Envoy gets its answer: the request's headers when the key is reserved
// (SET NX; GET when that finds one), the answer's headers at once, its whole body
// (response_body_mode BUFFERED) when it is recorded. gRPC and go-redis have their
// defaults. It promises what the tuned one promises, no more.
type plainProcessor struct {
	extproc.UnimplementedExternalProcessorServer
	redis *redis.Client
}

// plainRecord is what Redis keeps of a key.
type plainRecord struct {
	Fingerprint string      `json:"fingerprint"`
	Done        bool        `json:"done"`
	Status      int         `json:"status,omitempty"`
	Headers     [][2]string `json:"headers,omitempty"`
	Body        []byte      `json:"body,omitempty"`
}

// Process is called for each request.
func (p *plainProcessor) Process(srv extproc.ExternalProcessor_ProcessServer) error {
	ctx := srv.Context()
	var key string
	var r plainRecord
	for {
		msg, err := srv.Recv()
		if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
			return nil
		}
		if err != nil {
			return err
		}
		var resp *extproc.ProcessingResponse
		switch m := msg.GetRequest().(type) {
		case *extproc.ProcessingRequest_RequestHeaders:
			resp, err = p.requestHeaders(ctx, m.RequestHeaders, &key, &r)
		case *extproc.ProcessingRequest_ResponseHeaders:
			resp, err = p.responseHeaders(ctx, m.ResponseHeaders, key, &r)
		case *extproc.ProcessingRequest_ResponseBody:
			r.Body = m.ResponseBody.GetBody()
			err = p.finish(ctx, key, &r)
			resp = &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseBody{ResponseBody: &extproc.BodyResponse{}}}
		default:
			return status.Errorf(codes.InvalidArgument, "%T was not asked for", m)
		}
		if err != nil {
			resp = reply(503, [][2]string{{"retry-after", "1"}}, []byte("the ledger is away"))
		}
		if err := srv.Send(resp); err != nil {
			return err
		}
	}
}

// requestHeaders reserves the key, or answers.
func (p *plainProcessor) requestHeaders(ctx context.Context, h *extproc.HttpHeaders, key *string, r *plainRecord) (*extproc.ProcessingResponse, error) {
	goOn := &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestHeaders{RequestHeaders: &extproc.HeadersResponse{}}}
	headers := map[string]string{}
	for _, v := range h.GetHeaders().GetHeaders() {
		headers[v.GetKey()] = string(v.GetRawValue())
	}
	method := headers[":method"]
	if headers["idempotency-key"] == "" || method != "POST" && method != "PATCH" {
		return goOn, nil
	}
	*key = "idempotency:" + textDigest(headers[":authority"], headers[":path"], headers["authorization"]) + ":" + headers["idempotency-key"]
	r.Fingerprint = textDigest(method, headers[":path"], headers["content-length"])
	value, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	fresh, err := p.redis.SetNX(ctx, *key, value, pendingTTL).Result()
	if err != nil {
		return nil, err
	}
	if fresh {
		return goOn, nil
	}
	text, err := p.redis.Get(ctx, *key).Bytes()
	if err != nil {
		return nil, err
	}
	*key = "" // the answer is not the processor's to record
	var found plainRecord
	if err := json.Unmarshal(text, &found); err != nil {
		return nil, err
	}
	switch {
	case found.Fingerprint != r.Fingerprint:
		return reply(422, nil, []byte("the key belongs to another request")), nil
	case !found.Done:
		return reply(409, [][2]string{{"retry-after", "1"}}, []byte("the request is at work, or its outcome is unknown")), nil
	}
	return reply(found.Status, append(found.Headers, [2]string{"idempotent-replayed", "true"}), found.Body), nil
}

// responseHeaders keeps the answer's headers.
func (p *plainProcessor) responseHeaders(ctx context.Context, h *extproc.HttpHeaders, key string, r *plainRecord) (*extproc.ProcessingResponse, error) {
	for _, v := range h.GetHeaders().GetHeaders() {
		name, value := v.GetKey(), string(v.GetRawValue())
		switch name {
		case ":status":
			r.Status, _ = strconv.Atoi(value)
		case "date", "server", "connection", "transfer-encoding", "content-length", "x-envoy-upstream-service-time":
		default:
			r.Headers = append(r.Headers, [2]string{name, value})
		}
	}
	if h.GetEndOfStream() {
		if err := p.finish(ctx, key, r); err != nil {
			return nil, err
		}
	}
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extproc.HeadersResponse{}}}, nil
}

// finish records the answer, or frees the key where upstream asks to be retried.
func (p *plainProcessor) finish(ctx context.Context, key string, r *plainRecord) error {
	if key == "" {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	switch r.Status {
	case 408, 425, 429, 503:
		return p.redis.Del(ctx, key).Err()
	}
	r.Done = true
	value, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return p.redis.Set(ctx, key, value, answerTTL).Err()
}

func reply(code int, headers [][2]string, body []byte) *extproc.ProcessingResponse {
	var set []*core.HeaderValueOption
	for _, h := range headers {
		set = append(set, option(h[0], []byte(h[1])))
	}
	return immediate(uint32(code), set, body)
}

func textDigest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\n")))
	return hex.EncodeToString(sum[:16])
}
