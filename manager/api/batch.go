package api

import "encoding/binary"

// Bounds of a batch. A batch that exceeds them is rejected as a whole: 413.
const (
	// MaxBatchItems bounds the items.
	MaxBatchItems = 128
	// MaxBatchBytes bounds the body of the request.
	MaxBatchBytes = 1 << 20
	// MaxBatchReplyBytes bounds the recorded answers that a batch returns. An item whose answer does not fit gets
	// CodeAskAlone.
	MaxBatchReplyBytes = 1 << 20
	// MaxTraceHeaders bounds the headers of one item, MaxTraceBytes the sum of their names and values.
	MaxTraceHeaders = 9
	MaxTraceBytes   = 1536
)

// Op is what an item of a batch asks for. The values are those of the raw form.
type Op uint8

// The calls that a batch may hold.
const (
	OpReserve Op = iota + 1
	OpCommit
	OpReject
	OpRelease
	OpRenew
	OpUnknown
	// OpLookUp and OpPing are calls on a stream only. OpPing is answered at once.
	OpLookUp
	OpPing
)

var opNames = [...]string{"invalid", "reserve", "commit", "reject", "release", "renew", "unknown"}

// String returns the operation's name on the wire, "invalid" for an unknown one.
func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return opNames[0]
}

// ParseOp is the inverse of String.
func ParseOp(name string) (Op, bool) {
	for i, n := range opNames {
		if i > 0 && n == name {
			return Op(i), true
		}
	}
	return 0, false
}

// Path is the path of the operation as a single call.
func (o Op) Path() string {
	switch o {
	case OpReserve:
		return PathReserve
	case OpCommit:
		return PathCommit
	case OpReject:
		return PathReject
	case OpRelease:
		return PathRelease
	case OpRenew:
		return PathRenew
	case OpUnknown:
		return PathUnknown
	}
	return ""
}

// The raw form of a batch.
//
//	batch   := version(0x01) 'B' uvarint(count) item*
//	item    := op(1 byte) uvarint(count) (name value)* bytes(message)
//	answers := version(0x01) 'S' uvarint(count) answer*
//	answer  := uvarint(status) uvarint(retry after, seconds) bytes(body)
//
// A message is the raw form of the single call. A mistake in it affects only its item; a mistake in the frame affects
// the whole batch. The name-value pairs are headers that relate the item to the request that caused it. The body of an
// answer is the raw reply if the status is 2xx, else a problem in JSON.

const (
	kindBatch   = 'B'
	kindAnswers = 'S'
)

// AppendRawBatch begins the raw form of a batch of the given number of items, 1 to MaxBatchItems.
func AppendRawBatch(dst []byte, items int) []byte {
	return binary.AppendUvarint(append(dst, rawVersion, kindBatch), uint64(items))
}

// AppendRawItem appends one item. trace has names and values of headers.
func AppendRawItem(dst []byte, op Op, trace [][2]string, message []byte) []byte {
	dst = binary.AppendUvarint(append(dst, byte(op)), uint64(len(trace)))
	for i := range trace {
		dst = appendString(dst, trace[i][0])
		dst = appendString(dst, trace[i][1])
	}
	dst = binary.AppendUvarint(dst, uint64(len(message)))
	return append(dst, message...)
}

// AppendRawAnswers begins the raw form of the answers to a batch.
func AppendRawAnswers(dst []byte, items int) []byte {
	return binary.AppendUvarint(append(dst, rawVersion, kindAnswers), uint64(items))
}

// AppendRawAnswer appends the answer to one item. retryAfter is in seconds, 0 for none.
func AppendRawAnswer(dst []byte, status, retryAfter int, body []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(status))
	dst = binary.AppendUvarint(dst, uint64(retryAfter))
	dst = binary.AppendUvarint(dst, uint64(len(body)))
	return append(dst, body...)
}

// BatchItem is one item of a batch in the raw form. Trace and Message alias the batch.
type BatchItem struct {
	Op      Op
	Trace   []Header
	Message []byte
}

// BatchAnswer is the answer to one item in the raw form. Body aliases the answers.
type BatchAnswer struct {
	Status, RetryAfterSeconds int
	Body                      []byte
}

// ViewRawBatch reads the raw form of a batch and appends its items to dst. It reuses the capacity of dst and of the
// traces in it. It does not read the messages, and leaves an unknown Op to the caller. After an error dst is unusable.
// The error is a *RawError; its Problem has the status 413 when there are more than MaxBatchItems.
func ViewRawBatch(dst []BatchItem, b []byte) ([]BatchItem, error) {
	d := decoder{b: b, view: true}
	n := d.batch(kindBatch)
	for range n {
		if len(dst) < cap(dst) {
			dst = dst[:len(dst)+1]
		} else {
			dst = append(dst, BatchItem{})
		}
		item := &dst[len(dst)-1]
		item.Op = Op(d.byteField("op"))
		item.Trace = d.trace(item.Trace[:0])
		item.Message = d.bytesField("message")
		if d.err != nil {
			break
		}
	}
	return dst, d.end()
}

// ViewRawAnswers reads the raw form of the answers to a batch and appends them to dst. After an error, which is a
// *RawError, dst is unusable.
func ViewRawAnswers(dst []BatchAnswer, b []byte) ([]BatchAnswer, error) {
	d := decoder{b: b}
	n := d.batch(kindAnswers)
	for range n {
		var a BatchAnswer
		status, after := d.uvarint("status"), d.uvarint("retry_after")
		if d.err == nil && (status < 200 || status > 599) {
			d.fail("status", "must be 200 to 599")
		}
		if d.err == nil && after > uint64(MaxTTL.Seconds()) {
			d.fail("retry_after", "more than 366 days")
		}
		a.Status, a.RetryAfterSeconds, a.Body = int(status), int(after), d.bytesField("body")
		if d.err != nil {
			break
		}
		dst = append(dst, a)
	}
	return dst, d.end()
}

// batch reads the beginning of a batch or its answers.
func (d *decoder) batch(kind byte) int {
	d.start(kind)
	n := d.uvarint("items")
	if d.err == nil && n > MaxBatchItems {
		d.fail("items", allowedItems)
		d.err.TooLarge = true
	}
	if d.err == nil && n == 0 {
		d.fail("items", allowedItems)
	}
	if d.err != nil {
		return 0
	}
	return int(n)
}

const allowedItems = "must be 1 to 128"

// trace reads the headers of an item.
func (d *decoder) trace(dst []Header) []Header {
	n := d.uvarint("headers")
	if n > MaxTraceHeaders {
		d.fail("headers", "more than 9")
	}
	size := 0
	for range n {
		if d.err != nil {
			return dst
		}
		h := Header{Name: d.str("header name"), Value: d.str("header value")}
		size += len(h.Name) + len(h.Value)
		if d.err == nil && size > MaxTraceBytes {
			d.fail("headers", "more than 1536 bytes")
		}
		if d.err == nil && (!headerName(h.Name) || !headerValue(h.Value)) {
			d.fail("headers", allowedHeaderName+", "+allowedHeaderValue)
		}
		dst = append(dst, h)
	}
	return dst
}
