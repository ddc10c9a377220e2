package api

import "time"

// The functions below read a message in place: the strings they return are views of it, valid as long as it is neither
// freed nor modified. They are for the manager, which answers a request before it reuses the buffer, and copies what it
// stores.

// ViewRaw is ParseRaw whose strings alias b.
func (r *ReserveRequest) ViewRaw(b []byte) error { return r.decode(decoder{b: b, view: true}) }

// ViewRaw is ParseRaw whose strings alias b.
func (r *ReleaseRequest) ViewRaw(b []byte) error { return r.decode(decoder{b: b, view: true}) }

// ViewRaw is ParseRaw whose strings alias b. It reuses the memory of r.Headers. The gate replays recorded answers with it.
func (r *Result) ViewRaw(b []byte) error {
	d := decoder{b: b, view: true, room: r.Headers[:0]}
	d.result(r)
	return d.end()
}

// ViewRawFinish reads all fields of a FinishRequest in the raw form except the result, which it returns undecoded. The
// result and the strings alias b. The caller must check the result with CheckRawResult.
func (r *FinishRequest) ViewRawFinish(b []byte) (result []byte, err error) {
	*r = FinishRequest{}
	d := decoder{b: b, view: true}
	r.parseRawHead(&d)
	if d.err != nil {
		return nil, d.err
	}
	return d.b, nil
}

// CheckRawResult checks that b is one well-formed and valid result in the raw form, without building it. status is its
// HTTP status and body the number of bytes of its body. The error is a *RawError or a *FieldError.
func CheckRawResult(b []byte) (status, body int, err error) {
	d := decoder{b: b}
	status, omitted, headers := d.resultHead()
	size := 0
	for range headers {
		name, value := d.bytesField("header name"), d.bytesField("header value")
		if d.err != nil {
			break
		}
		size += len(name) + len(value)
		if !headerName(string(name)) { // does not allocate
			return 0, 0, &FieldError{fieldHeaders, shorten(string(name)), allowedHeaderName}
		}
		if !headerValue(string(value)) {
			return 0, 0, &FieldError{fieldHeaders, shorten(string(name)), allowedHeaderValue}
		}
	}
	if size > MaxResultHeaderBytes {
		d.fail("headers", allowedHeaders)
	}
	content := d.bytesField("body")
	if d.err == nil && omitted && len(content) != 0 {
		d.fail("body", allowedOmitted)
	}
	if err := d.end(); err != nil {
		return 0, 0, err
	}
	return status, len(content), nil
}

// AppendRawReply appends the raw form of a reply whose result, if any, is already in the raw form.
func AppendRawReply(dst []byte, state State, expiresIn time.Duration, result []byte) []byte {
	dst = append(dst, rawVersion, kindReply, byte(state))
	dst = appendDuration(dst, expiresIn)
	if len(result) == 0 {
		return append(dst, 0)
	}
	dst = append(dst, 1)
	return append(dst, result...)
}

// RawBodyOmitted reports whether b, a result in the raw form, says that its body was not recorded.
func RawBodyOmitted(b []byte) bool {
	d := decoder{b: b}
	d.uvarint("status")
	return d.byteField("flags")&1 != 0 && d.err == nil
}
