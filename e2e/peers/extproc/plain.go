package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"strconv"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/redis/go-redis/v9"
)

// plainStream is one request to the external processor as one writes it from the documentation of
// Envoy and go-redis, without a thought to what it costs.
//
// Each message of Envoy gets its answer: the request's headers when the key is reserved
// (SET NX; GET when that finds one), the answer's headers at once, its whole body
// (response_body_mode BUFFERED) when it is recorded. gRPC and go-redis have their
// defaults. It promises what the tuned one promises, no more.
type plainStream struct {
	redis  *redis.Client
	key    string // empty: the answer is not the processor's to record
	record plainRecord
}

// plainRecord is what Redis keeps of a key.
type plainRecord struct {
	Fingerprint string      `json:"fingerprint"`
	Done        bool        `json:"done"`
	Status      int         `json:"status,omitempty"`
	Headers     [][2]string `json:"headers,omitempty"`
	Body        []byte      `json:"body,omitempty"`
}

// requestHeaders reserves the key, or answers.
func (s *plainStream) requestHeaders(ctx context.Context, headers []*core.HeaderValue) (answers []*extproc.ProcessingResponse, done bool, err error) {
	key, mark, keyed := keyOf(headers)
	if !keyed {
		return one(requestGoesOn), false, nil
	}
	s.record.Fingerprint = hex.EncodeToString(mark[:])
	value, err := json.Marshal(s.record)
	if err != nil {
		return nil, false, err
	}
	fresh, err := s.redis.SetNX(ctx, key, value, pendingTTL).Result()
	if err != nil {
		return away, false, nil
	}
	if fresh {
		s.key = key
		return one(requestGoesOn), false, nil
	}
	text, err := s.redis.Get(ctx, key).Bytes()
	if err != nil {
		return away, false, nil
	}
	var found plainRecord
	if err := json.Unmarshal(text, &found); err != nil {
		return nil, false, err
	}
	switch {
	case found.Fingerprint != s.record.Fingerprint:
		return problem(422, "the key belongs to another request"), false, nil
	case !found.Done:
		return problem(409, "the request is at work, or its outcome is unknown", "retry-after", "1"), false, nil
	}
	set := []*core.HeaderValueOption{option("idempotent-replayed", []byte("true"))}
	for _, h := range found.Headers {
		set = append(set, option(h[0], []byte(h[1])))
	}
	return one(immediate(uint32(found.Status), set, found.Body)), false, nil
}

var away = problem(503, "the ledger is away", "retry-after", "1")

// responseHeaders keeps the answer's headers.
func (s *plainStream) responseHeaders(ctx context.Context, headers []*core.HeaderValue, end bool) (answers []*extproc.ProcessingResponse, done bool, err error) {
	for _, v := range headers {
		name, value := v.GetKey(), string(v.GetRawValue())
		if name == ":status" {
			s.record.Status, _ = strconv.Atoi(value)
		}
		if !perConnection(name) {
			s.record.Headers = append(s.record.Headers, [2]string{name, value})
		}
	}
	if end && s.finish(ctx) != nil {
		return away, false, nil
	}
	return one(headersGoOn), false, nil
}

// responseBody gets the whole body at once.
func (s *plainStream) responseBody(ctx context.Context, body []byte, _ bool) (answers []*extproc.ProcessingResponse, done bool, err error) {
	s.record.Body = body
	if s.finish(ctx) != nil {
		return away, false, nil
	}
	return one(bodyGoesOn), false, nil
}

// finish records the answer, or frees the key where upstream asks to be retried.
func (s *plainStream) finish(ctx context.Context) error {
	if s.key == "" {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	if asksToRetry(strconv.Itoa(s.record.Status)) {
		return s.redis.Del(ctx, s.key).Err()
	}
	s.record.Done = true
	value, err := json.Marshal(s.record)
	if err != nil {
		return err
	}
	return s.redis.Set(ctx, s.key, value, answerTTL).Err()
}
