package api

import (
	"encoding/binary"
	"strconv"
	"time"
	"unsafe"
)

// The raw form.
//
//	message := version(0x01) kind field*
//	string, bytes := uvarint(length) byte*
//	duration := uvarint(milliseconds, rounded up)
//	result := uvarint(status) flags(1 byte, bit 0 body omitted) uvarint(count) (name value)* body
//
// Fields are in the order in which the structs of types.go declare them. Trailing bytes are an error, so that a sender
// and a receiver that disagree never half understand each other. UnknownTTL is a duration plus one millisecond, or 0 for
// the manager's default. Durability is one byte.

const rawVersion = 1

// Kinds of raw messages.
const (
	kindReserve = 'R'
	kindFinish  = 'F'
	kindRelease = 'L'
	kindReply   = 'A'
)

// RawError says why a raw message was rejected.
type RawError struct {
	// Field is the name of the field, empty for the frame itself.
	Field string
	// Reason completes the sentence "<field>: ...".
	Reason string
}

func (e *RawError) Error() string {
	if e.Field == "" {
		return "raw message: " + e.Reason
	}
	return "raw message: " + e.Field + ": " + e.Reason
}

// Problem returns the answer to a request with this error, a 400.
func (e *RawError) Problem() Problem {
	return Problem{Status: 400, Code: CodeInvalidRequest, Title: "Invalid request", Detail: e.Error()}
}

// AppendRaw appends the raw form.
func (r *ReserveRequest) AppendRaw(dst []byte) []byte {
	dst = append(dst, rawVersion, kindReserve)
	dst = appendString(dst, r.Key)
	dst = appendString(dst, r.Scope)
	dst = appendString(dst, r.Fingerprint)
	dst = appendString(dst, r.Token)
	dst = appendDuration(dst, r.PendingTTL)
	dst = appendDuration(dst, r.Wait)
	unknown := uint64(0)
	if r.UnknownTTL != 0 {
		unknown = uint64(millis(r.UnknownTTL)) + 1
	}
	return append(binary.AppendUvarint(dst, unknown), byte(r.Durability))
}

// ParseRaw reads the raw form. It does not validate the fields' values.
func (r *ReserveRequest) ParseRaw(b []byte) error { return r.decode(decoder{b: b}) }

func (r *ReserveRequest) decode(d decoder) error {
	d.start(kindReserve)
	r.Key = d.str("key")
	r.Scope = d.str("scope")
	r.Fingerprint = d.str("fingerprint")
	r.Token = d.str("token")
	r.PendingTTL = d.duration("pending_ttl")
	r.Wait = d.duration("wait")
	r.UnknownTTL = d.unknownTTL()
	r.Durability = d.durability()
	return d.end()
}

// AppendRaw appends the raw form.
func (r *FinishRequest) AppendRaw(dst []byte) []byte {
	return r.Result.AppendRaw(r.appendRawHead(dst))
}

func (r *FinishRequest) appendRawHead(dst []byte) []byte {
	dst = append(dst, rawVersion, kindFinish)
	dst = appendString(dst, r.Key)
	dst = appendString(dst, r.Scope)
	dst = appendString(dst, r.Token)
	dst = appendString(dst, r.Fingerprint)
	dst = appendDuration(dst, r.TTL)
	return append(dst, byte(r.Durability))
}

// AppendRawWith appends the raw form with a result that is already in the raw form, instead of r.Result.
func (r *FinishRequest) AppendRawWith(dst, result []byte) []byte {
	return append(r.appendRawHead(dst), result...)
}

// ParseRaw reads the raw form. The result's body aliases b.
func (r *FinishRequest) ParseRaw(b []byte) error {
	d := decoder{b: b}
	r.parseRawHead(&d)
	d.result(&r.Result)
	return d.end()
}

// parseRawHead reads all fields before the result.
func (r *FinishRequest) parseRawHead(d *decoder) {
	d.start(kindFinish)
	r.Key = d.str("key")
	r.Scope = d.str("scope")
	r.Token = d.str("token")
	r.Fingerprint = d.str("fingerprint")
	r.TTL = d.duration("ttl")
	r.Durability = d.durability()
}

// AppendRaw appends the raw form.
func (r *ReleaseRequest) AppendRaw(dst []byte) []byte {
	dst = append(dst, rawVersion, kindRelease)
	dst = appendString(dst, r.Key)
	dst = appendString(dst, r.Scope)
	dst = appendString(dst, r.Token)
	return append(dst, byte(r.Durability))
}

// ParseRaw reads the raw form.
func (r *ReleaseRequest) ParseRaw(b []byte) error { return r.decode(decoder{b: b}) }

func (r *ReleaseRequest) decode(d decoder) error {
	d.start(kindRelease)
	r.Key = d.str("key")
	r.Scope = d.str("scope")
	r.Token = d.str("token")
	r.Durability = d.durability()
	return d.end()
}

// AppendRaw appends the raw form. The answer to a commit, reject or release is a reply that has only a State.
func (r *ReserveReply) AppendRaw(dst []byte) []byte {
	dst = append(dst, rawVersion, kindReply, byte(r.State))
	dst = appendDuration(dst, r.ExpiresIn)
	if r.State.Terminal() && r.Result.Status != 0 {
		dst = append(dst, 1)
		return r.Result.AppendRaw(dst)
	}
	return append(dst, 0)
}

// ParseRaw reads the raw form. The result's body aliases b.
func (r *ReserveReply) ParseRaw(b []byte) error {
	d := decoder{b: b}
	d.start(kindReply)
	r.State = State(d.byteField("state"))
	if d.err == nil && int(r.State) >= len(stateNames) {
		d.fail("state", "unknown state")
	}
	r.ExpiresIn = d.duration("expires_in")
	r.Result = Result{}
	switch d.byteField("has_result") {
	case 0:
	case 1:
		d.result(&r.Result)
	default:
		d.fail("has_result", "must be 0 or 1")
	}
	return d.end()
}

// AppendRaw appends the raw form of a result by itself. Results are stored in this form, so a recorded answer is
// encoded once.
func (r *Result) AppendRaw(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(r.Status))
	var flags byte
	if r.BodyOmitted {
		flags |= 1
	}
	dst = append(dst, flags)
	dst = binary.AppendUvarint(dst, uint64(len(r.Headers)))
	for i := range r.Headers {
		dst = appendString(dst, r.Headers[i].Name)
		dst = appendString(dst, r.Headers[i].Value)
	}
	dst = binary.AppendUvarint(dst, uint64(len(r.Body)))
	return append(dst, r.Body...)
}

// ParseRaw reads a result by itself. The body aliases b.
func (r *Result) ParseRaw(b []byte) error {
	d := decoder{b: b}
	d.result(r)
	return d.end()
}

func appendString(dst []byte, s string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

func appendDuration(dst []byte, v time.Duration) []byte {
	return binary.AppendUvarint(dst, uint64(millis(v)))
}

// decoder reads fields until the first error, and zero values after it.
type decoder struct {
	b    []byte
	view bool     // strings alias b
	room []Header // memory for a result's headers
	err  *RawError
}

func (d *decoder) fail(field, reason string) {
	if d.err == nil {
		d.err = &RawError{Field: field, Reason: reason}
	}
	d.b = nil
}

func (d *decoder) start(kind byte) {
	if len(d.b) < 2 {
		d.fail("", "shorter than its header")
		return
	}
	if d.b[0] != rawVersion {
		d.fail("", "has version "+strconv.Itoa(int(d.b[0]))+", must be "+strconv.Itoa(rawVersion))
		return
	}
	if d.b[1] != kind {
		d.fail("", "unexpected kind of message")
		return
	}
	d.b = d.b[2:]
}

func (d *decoder) end() error {
	if d.err == nil && len(d.b) != 0 {
		d.fail("", "trailing bytes")
	}
	if d.err != nil {
		return d.err
	}
	return nil
}

func (d *decoder) byteField(field string) byte {
	if len(d.b) == 0 {
		d.fail(field, "missing")
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *decoder) uvarint(field string) uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail(field, "missing or malformed")
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) bytesField(field string) []byte {
	n := d.uvarint(field)
	if n > uint64(len(d.b)) {
		d.fail(field, "longer than the message")
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) str(field string) string {
	v := d.bytesField(field)
	if d.view {
		return unsafe.String(unsafe.SliceData(v), len(v))
	}
	return string(v)
}

func (d *decoder) duration(field string) time.Duration {
	v := d.uvarint(field)
	if v > uint64(MaxTTL/time.Millisecond) {
		d.fail(field, "more than 366 days")
		return 0
	}
	return time.Duration(v) * time.Millisecond
}

func (d *decoder) durability() Durability {
	v := Durability(d.byteField(fieldDurability))
	if int(v) >= len(durabilityNames) {
		d.fail(fieldDurability, "must be 0 for local, 1 for region or 2 for global")
	}
	return v
}

func (d *decoder) unknownTTL() time.Duration {
	switch v := d.uvarint("unknown_ttl"); {
	case v == 0:
		return 0
	case v-1 > uint64(MaxTTL/time.Millisecond):
		d.fail("unknown_ttl", "must be 0, or 1 ms more than 0 to 366 days")
		return 0
	case v == 1:
		return NoUnknown
	default:
		return time.Duration(v-1) * time.Millisecond
	}
}

func (d *decoder) result(r *Result) {
	*r = Result{}
	var headers int
	if r.Status, r.BodyOmitted, headers = d.resultHead(); headers > 0 {
		r.Headers = d.headers(headers)
	}
	r.Body = d.bytesField("body")
	if d.err != nil {
		*r = Result{}
	}
}

// resultHead reads what is before the headers of a result. After an error there are no headers.
func (d *decoder) resultHead() (status int, omitted bool, headers int) {
	s := d.uvarint("status")
	if d.err == nil && (s < 100 || s > MaxStatus) {
		d.fail("status", allowedStatus)
	}
	flags := d.byteField("flags")
	if flags > 1 {
		d.fail("flags", "unknown flag")
	}
	n := d.uvarint("headers")
	if n > MaxResultHeaders {
		d.fail("headers", allowedHeaders)
	}
	if d.err != nil {
		n = 0
	}
	return int(s), flags&1 != 0, int(n)
}

// headers reads n headers. Their names and values share one string, so n headers need two allocations at most.
func (d *decoder) headers(n int) []Header {
	block := d.b
	for range n {
		d.bytesField("header name")
		d.bytesField("header value")
	}
	if d.err != nil {
		return nil
	}
	var text string
	if block = block[:len(block)-len(d.b)]; d.view {
		text = unsafe.String(unsafe.SliceData(block), len(block))
	} else {
		text = string(block)
	}
	headers := d.room
	if cap(headers) < n {
		headers = make([]Header, n)
	}
	headers = headers[:n]
	again := decoder{b: block}
	for i := range headers {
		name := len(again.bytesField(""))
		headers[i].Name = text[len(block)-len(again.b)-name:][:name]
		value := len(again.bytesField(""))
		headers[i].Value = text[len(block)-len(again.b)-value:][:value]
	}
	return headers
}

// millis rounds up, so a time that is not over is never sent as 0.
func millis(d time.Duration) int64 {
	if d < 0 {
		return 0
	}
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
