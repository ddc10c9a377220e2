package api

import (
	"encoding/binary"
	"math/bits"
)

// The ledger's calls on a gRPC stream: the method StreamMethod of StreamService, described in oncegate.proto. Each message
// of the caller is a StreamCall, each message of the manager a StreamReply. Replies come in any order. What is said once for all
// calls of a stream is in its initial metadata, by the names of the headers: authorization, HeaderShard, HeaderLedger,
// HeaderStream.
const (
	StreamService = "oncegate.v1.Ledger"
	StreamMethod  = "Calls"
	// PathCalls is the stream's path.
	PathCalls = "/" + StreamService + "/" + StreamMethod

	// HeaderStream in the metadata, with the value StreamLarge, says that the stream is for large messages. Other streams get recorded
	// answers of at most MaxSmallReply bytes, so that no reply is delayed by a large one; a call with a larger answer gets
	// CodeLargeAnswer.
	HeaderStream = "oncegate-stream"
	StreamLarge  = "large"

	// MaxSmallReply bounds the body of a reply on a stream that is not for large messages.
	MaxSmallReply = 64 << 10
	// MaxStreamMessage bounds a message in either direction: the largest answer that is recorded, and room for the rest.
	MaxStreamMessage = 17 << 20

	// MaxTogether bounds the calls of a stream that the manager makes in one transaction.
	MaxTogether = 128

	// MaxTraceHeaders bounds the headers of one call, MaxTraceBytes the sum of their names and values.
	MaxTraceHeaders = 9
	MaxTraceBytes   = 1536
)

// StreamCall is one call on a stream.
type StreamCall struct {
	// Number is chosen by the caller, and is in the reply. It must be another one than those of the stream's calls that have no
	// reply yet.
	Number uint64
	Op     Op
	// Trace has the headers that relate the call to the request that caused it.
	Trace []Header
	// Message is the raw form of the call's request. OpPing has none.
	Message []byte
}

// StreamReply is the reply to one call.
type StreamReply struct {
	Number uint64
	// Status is that of the HTTP call, RetryAfterSeconds its Retry-After, 0 for none.
	Status, RetryAfterSeconds int
	// Body is the raw form of a ReserveReply if Status is 2xx, else a Problem in JSON.
	Body []byte
	// Mark is the ledger's Mark after the call. It is empty if the stream's next reply has it.
	Mark string
}

// The messages are protobuf, so that other programs can use the stream with generated code. Their few fields are written and
// read here by hand, because the gate has no room for a protobuf library.

// Field numbers and wire types, as in oncegate.proto.
const (
	wireVarint = 0
	wireBytes  = 2

	tagCallNumber  = 1<<3 | wireVarint
	tagCallOp      = 2<<3 | wireVarint
	tagCallTrace   = 3<<3 | wireBytes
	tagCallMessage = 4<<3 | wireBytes

	tagHeaderName  = 1<<3 | wireBytes
	tagHeaderValue = 2<<3 | wireBytes

	tagReplyNumber = 1<<3 | wireVarint
	tagReplyStatus = 2<<3 | wireVarint
	tagReplyAfter  = 3<<3 | wireVarint
	tagReplyBody   = 4<<3 | wireBytes
	tagReplyMark   = 5<<3 | wireBytes
)

// AppendStreamCall appends a StreamCall. trace has names and values of headers.
func AppendStreamCall(dst []byte, number uint64, op Op, trace [][2]string, message []byte) []byte {
	dst = binary.AppendUvarint(append(dst, tagCallNumber), number)
	dst = append(dst, tagCallOp, byte(op))
	for i := range trace {
		name, value := trace[i][0], trace[i][1]
		size := 1 + uvarintBytes(len(name)) + len(name) + 1 + uvarintBytes(len(value)) + len(value)
		dst = binary.AppendUvarint(append(dst, tagCallTrace), uint64(size))
		dst = appendString(append(dst, tagHeaderName), name)
		dst = appendString(append(dst, tagHeaderValue), value)
	}
	if len(message) == 0 {
		return dst
	}
	dst = binary.AppendUvarint(append(dst, tagCallMessage), uint64(len(message)))
	return append(dst, message...)
}

// View reads a call. Trace and Message alias b, and the memory of c.Trace is reused. Fields that are not known are skipped.
// The error is a *RawError. It concerns the stream, because the call has no reliable number.
func (c *StreamCall) View(b []byte) error {
	*c = StreamCall{Trace: c.Trace[:0]}
	d := decoder{b: b, view: true}
	size := 0
	for len(d.b) > 0 {
		switch tag := d.uvarint("tag"); tag {
		case tagCallNumber:
			c.Number = d.uvarint("number")
		case tagCallOp:
			op := d.uvarint("op")
			c.Op = Op(min(op, 255))
		case tagCallTrace:
			h := decoder{b: d.bytesField("trace"), view: true, err: d.err}
			c.Trace = append(c.Trace, h.traceHeader())
			if d.err == nil {
				d.err = h.err
			}
			if len(c.Trace) > MaxTraceHeaders {
				d.fail("trace", "more than 9 headers")
			}
			last := &c.Trace[len(c.Trace)-1]
			if size += len(last.Name) + len(last.Value); size > MaxTraceBytes {
				d.fail("trace", "more than 1536 bytes")
			}
		case tagCallMessage:
			c.Message = d.bytesField("message")
		default:
			d.skip(tag)
		}
	}
	if d.err == nil && c.Number == 0 {
		d.fail("number", "must not be 0")
	}
	return d.end()
}

func (d *decoder) traceHeader() (h Header) {
	for len(d.b) > 0 {
		switch tag := d.uvarint("tag"); tag {
		case tagHeaderName:
			h.Name = d.str("header name")
		case tagHeaderValue:
			h.Value = d.str("header value")
		default:
			d.skip(tag)
		}
	}
	if d.err == nil && (!headerName(h.Name) || !headerValue(h.Value)) {
		d.fail("trace", allowedHeaderName+", "+allowedHeaderValue)
	}
	return h
}

// AppendStreamReply appends a StreamReply whose body is the one given, and without a body if that is empty.
func AppendStreamReply(dst []byte, number uint64, status, retryAfter int, mark string, body []byte) []byte {
	dst = binary.AppendUvarint(append(dst, tagReplyNumber), number)
	dst = binary.AppendUvarint(append(dst, tagReplyStatus), uint64(status))
	if retryAfter > 0 {
		dst = binary.AppendUvarint(append(dst, tagReplyAfter), uint64(retryAfter))
	}
	if mark != "" {
		dst = appendString(append(dst, tagReplyMark), mark)
	}
	if len(body) == 0 {
		return dst
	}
	dst = binary.AppendUvarint(append(dst, tagReplyBody), uint64(len(body)))
	return append(dst, body...)
}

// AppendStreamMark appends the mark to a StreamReply without one.
func AppendStreamMark(dst []byte, mark string) []byte {
	return appendString(append(dst, tagReplyMark), mark)
}

// View reads a reply. Mark and Body alias b. Fields that are not known are skipped. The error is a *RawError.
func (r *StreamReply) View(b []byte) error {
	*r = StreamReply{}
	d := decoder{b: b, view: true}
	var status, after uint64
	for len(d.b) > 0 {
		switch tag := d.uvarint("tag"); tag {
		case tagReplyNumber:
			r.Number = d.uvarint("number")
		case tagReplyStatus:
			status = d.uvarint("status")
		case tagReplyAfter:
			after = d.uvarint("retry_after")
		case tagReplyBody:
			r.Body = d.bytesField("body")
		case tagReplyMark:
			r.Mark = d.str("mark")
		default:
			d.skip(tag)
		}
	}
	switch {
	case d.err != nil:
	case r.Number == 0:
		d.fail("number", "must not be 0")
	case status < 200 || status > 599:
		d.fail("status", "must be 200 to 599")
	case after > uint64(MaxTTL.Seconds()):
		d.fail("retry_after", "more than 366 days")
	case len(r.Mark) > MaxMarkBytes:
		d.fail("mark", "too long")
	}
	r.Status, r.RetryAfterSeconds = int(status), int(after)
	return d.end()
}

// skip skips a field that is not known.
func (d *decoder) skip(tag uint64) {
	size := uint64(0)
	switch tag & 7 {
	case wireVarint:
		d.uvarint("field")
	case wireBytes:
		d.bytesField("field")
	case 1:
		size = 8
	case 5:
		size = 4
	default:
		d.fail("field", "has a wire type that is not 0, 1, 2 or 5")
	}
	if size > uint64(len(d.b)) {
		d.fail("field", "longer than the message")
		return
	}
	d.b = d.b[size:]
}

func uvarintBytes(n int) int { return (bits.Len(uint(n)|1) + 6) / 7 }
