package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"strconv"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/redis/rueidis"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// maxBody is the longest answer that is recorded, in bytes. A longer one passes,
// and its key is answered with 410 from then on.
const maxBody = 512 << 10

// stream is one request.
type stream struct {
	redis rueidis.Client
	key   string   // in Redis
	mark  [16]byte // fingerprint
	// The answer so far.
	status  string
	headers []*core.HeaderValue
	body    []byte
	long    bool
	held    bool // the answer's headers wait for their response
	chunks  int  // of the body, that wait for theirs
}

// requestHeaders reserves the key.
func (s *stream) requestHeaders(ctx context.Context, headers []*core.HeaderValue) (answers []*extproc.ProcessingResponse, done bool, err error) {
	var keyed bool
	if s.key, s.mark, keyed = keyOf(headers); !keyed {
		return one(requestGoesOn), true, nil
	}
	value := append([]byte{'P'}, s.mark[:]...)
	found, err := s.redis.Do(ctx, s.redis.B().Set().Key(s.key).Value(rueidis.BinaryString(value)).Nx().Get().Px(pendingTTL).Build()).AsBytes()
	switch {
	case rueidis.IsRedisNil(err): // new
		return one(requestGoesOn), false, nil
	case err != nil:
		return problem(503, "the ledger is away", "retry-after", "1"), true, nil
	case len(found) < 17 || !bytes.Equal(found[1:17], s.mark[:]):
		return problem(422, "the key belongs to another request"), true, nil
	case found[0] == 'P':
		return problem(409, "the request is at work, or its outcome is unknown", "retry-after", "1"), true, nil
	case found[0] == 'L':
		return problem(410, "the answer was too long to be recorded"), true, nil
	}
	answer, err := replay(found[17:])
	return one(answer), true, err
}

// responseHeaders keeps them.
func (s *stream) responseHeaders(ctx context.Context, headers []*core.HeaderValue, end bool) (answers []*extproc.ProcessingResponse, done bool, err error) {
	s.headers = headers
	for _, v := range headers {
		if v.GetKey() == ":status" {
			s.status = string(v.GetRawValue())
		}
	}
	if !end {
		s.held = true
		return nil, false, nil
	}
	if s.finish(context.WithoutCancel(ctx)) != nil {
		return problem(503, "the answer could not be recorded"), true, nil
	}
	return one(headersGoOn), true, nil
}

// responseBody records the answer when it is complete, and lets it go then.
func (s *stream) responseBody(ctx context.Context, body []byte, end bool) (answers []*extproc.ProcessingResponse, done bool, err error) {
	if s.body == nil && end {
		s.body = body
	} else if !s.long {
		s.body = append(s.body, body...)
	}
	if len(s.body) > maxBody {
		s.long, s.body = true, nil
	}
	if end && s.finish(context.WithoutCancel(ctx)) != nil && s.held { // else it has begun to pass
		return problem(503, "the answer could not be recorded"), true, nil
	}
	s.chunks++
	if s.held && !s.long && !end {
		return nil, false, nil
	}
	// Envoy holds chunks while they wait, up to its buffer's limit: a long answer must
	// not wait for its end.
	if s.held {
		s.held, answers = false, append(answers, headersGoOn)
	}
	for ; s.chunks > 0; s.chunks-- {
		answers = append(answers, bodyGoesOn)
	}
	return answers, end, nil
}

// finish records the answer, or frees the key where upstream asks to be retried.
func (s *stream) finish(ctx context.Context) error {
	if asksToRetry(s.status) {
		return s.redis.Do(ctx, s.redis.B().Del().Key(s.key).Build()).Error()
	}
	record, err := s.record()
	if err != nil {
		return err
	}
	return s.redis.Do(ctx, s.redis.B().Set().Key(s.key).Value(rueidis.BinaryString(record)).Px(answerTTL).Build()).Error()
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

// replay is the recorded answer.
func replay(b []byte) (*extproc.ProcessingResponse, error) {
	n, size := binary.Uvarint(b)
	answer := new(extproc.ProcessingResponse)
	if size <= 0 || n != uint64(len(b)-size) || proto.Unmarshal(b[size:], answer) != nil {
		return nil, status.Error(codes.DataLoss, "the record cannot be read")
	}
	return answer, nil
}
