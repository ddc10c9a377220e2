package api

import (
	"cmp"
	"strconv"
	"time"
)

// FieldError says which field of a request was rejected, its value and what is allowed.
type FieldError struct {
	// Field is the field's name on the wire, "body" for the message itself.
	Field string
	// Value is what was sent, shortened; empty when the field is missing or its value would not help.
	Value string
	// Allowed completes the sentence "<field>: must be ...".
	Allowed string
}

func (e *FieldError) Error() string {
	msg := e.Field + ": "
	if e.Value != "" {
		msg += strconv.QuoteToASCII(e.Value) + ": "
	}
	return msg + e.Allowed
}

// Problem returns the answer to a request with this error: 400.
func (e *FieldError) Problem() Problem {
	p := Problem{Status: 400, Code: CodeInvalidRequest, Title: "Invalid request", Detail: e.Error()}
	if e.Field == fieldKey {
		p.Code = CodeInvalidKey
		p.Title = "Invalid idempotency key"
	}
	return p
}

// Names of fields on the wire.
const (
	fieldKey         = "key"
	fieldScope       = "scope"
	fieldFingerprint = "fingerprint"
	fieldToken       = "token"
	fieldPendingTTL  = "pending_ttl_ms"
	fieldWait        = "wait_ms"
	fieldUnknownTTL  = "unknown_ttl_ms"
	fieldTTL         = "ttl_ms"
	fieldStatus      = "result.status"
	fieldHeaders     = "result.headers"
	fieldBody        = "result.body"
)

const (
	allowedKey         = "must be 1 to 255 bytes of printable ASCII without a blank at either end"
	allowedScope       = "must be at most 255 bytes of visible ASCII"
	allowedToken       = "must be 1 to 64 bytes of visible ASCII"
	allowedFingerprint = "must be at most 128 bytes of visible ASCII"
	allowedStatus      = "must be 100 to 999"
	allowedHeaderName  = "header names must be lower-case HTTP tokens"
	allowedHeaderValue = "header values must not hold control characters"
	allowedHeaders     = "must be at most 256 headers of 65536 bytes in all"
	allowedOmitted     = "must be empty when the body is omitted"
)

// allowedMillis is a whole number of milliseconds up to MaxTTL.
var allowedMillis = "must be a whole number from 0 to " + strconv.FormatInt(int64(MaxTTL/time.Millisecond), 10)

// ValidateKey reports whether key can name an entry, see ValidKey. The error is a *FieldError.
func ValidateKey(key string) error {
	if !ValidKey(key) {
		return &FieldError{fieldKey, shorten(key), allowedKey}
	}
	return nil
}

// ValidateScope reports whether scope is usable: up to MaxScopeBytes bytes of
// visible ASCII. The error is a *FieldError.
func ValidateScope(scope string) error {
	return validateVisible(fieldScope, scope, 0, MaxScopeBytes, allowedScope)
}

// ValidateToken reports whether token is usable: 1 to MaxTokenBytes bytes of visible ASCII. The error is a *FieldError.
func ValidateToken(token string) error {
	return validateVisible(fieldToken, token, 1, MaxTokenBytes, allowedToken)
}

// ValidateFingerprint reports whether fingerprint is usable: up to MaxFingerprintBytes bytes of visible ASCII. The error is
// a *FieldError.
func ValidateFingerprint(fingerprint string) error {
	return validateVisible(fieldFingerprint, fingerprint, 0, MaxFingerprintBytes, allowedFingerprint)
}

func validateVisible(field, s string, least, most int, allowed string) error {
	if !Visible(s, least, most) {
		return &FieldError{field, shorten(s), allowed}
	}
	return nil
}

func validateDuration(field string, d time.Duration) error {
	if d < 0 || d > MaxTTL {
		return &FieldError{field, strconv.FormatInt(int64(d/time.Millisecond), 10), allowedMillis}
	}
	return nil
}

// Validate checks the values of all fields. The error is a *FieldError.
func (r *ReserveRequest) Validate() error {
	return cmp.Or(
		ValidateKey(r.Key), ValidateScope(r.Scope), ValidateFingerprint(r.Fingerprint), ValidateToken(r.Token),
		validateDuration(fieldPendingTTL, r.PendingTTL), validateDuration(fieldWait, r.Wait),
		validateDuration(fieldUnknownTTL, max(r.UnknownTTL, 0)), validateDurability(r.Durability),
	)
}

// Validate checks the values of all fields. The error is a *FieldError.
func (r *FinishRequest) Validate() error {
	return cmp.Or(
		ValidateKey(r.Key), ValidateScope(r.Scope), ValidateToken(r.Token), ValidateFingerprint(r.Fingerprint),
		validateDuration(fieldTTL, r.TTL), r.Result.Validate(),
	)
}

// Validate checks the values of all fields. The error is a *FieldError.
func (r *ReleaseRequest) Validate() error {
	return cmp.Or(ValidateKey(r.Key), ValidateScope(r.Scope), ValidateToken(r.Token), validateDurability(r.Durability))
}

func validateDurability(d Durability) error {
	if int(d) >= len(durabilityNames) {
		return &FieldError{fieldDurability, d.String(), "must be " + DurabilityNames}
	}
	return nil
}

// Validate checks that the result can be sent as an HTTP answer without
// breaking its framing. It does not limit the body. The error is a *FieldError.
func (r *Result) Validate() error {
	if r.Status < 100 || r.Status > MaxStatus {
		return &FieldError{fieldStatus, strconv.Itoa(r.Status), allowedStatus}
	}
	if len(r.Headers) > MaxResultHeaders {
		return &FieldError{fieldHeaders, strconv.Itoa(len(r.Headers)) + " headers", allowedHeaders}
	}
	size := 0
	for i := range r.Headers {
		h := &r.Headers[i]
		if !headerName(h.Name) {
			return &FieldError{fieldHeaders, shorten(h.Name), allowedHeaderName}
		}
		if !headerValue(h.Value) {
			return &FieldError{fieldHeaders, shorten(h.Name), allowedHeaderValue}
		}
		size += len(h.Name) + len(h.Value)
	}
	if size > MaxResultHeaderBytes {
		return &FieldError{fieldHeaders, strconv.Itoa(size) + " bytes", allowedHeaders}
	}
	if r.BodyOmitted && len(r.Body) != 0 {
		return &FieldError{fieldBody, "", allowedOmitted}
	}
	return nil
}

// ValidKey reports whether key is 1 to MaxKeyBytes bytes of printable ASCII (0x20 to 0x7e). It has no blank at either
// end, because HTTP drops those of a header.
func ValidKey(key string) bool {
	return len(key) >= 1 && len(key) <= MaxKeyBytes && key[0] != ' ' && key[len(key)-1] != ' ' && ascii(key, ' ')
}

// Visible reports whether s is minLen to maxLen bytes of visible ASCII (0x21 to 0x7e).
func Visible(s string, minLen, maxLen int) bool {
	return len(s) >= minLen && len(s) <= maxLen && ascii(s, 0x21)
}

// ascii reports whether all bytes of s are from lowest, at most 0x80, to 0x7e.
func ascii(s string, lowest byte) bool {
	for ; len(s) >= 8; s = s[8:] {
		w := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
			uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
		if !ascii8(w, lowest) {
			return false
		}
	}
	for i := 0; i < len(s); i++ {
		if s[i] < lowest || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// ascii8 is ascii for eight bytes at a time, because every call has about 150 of them. A byte from 0x80 up has its top bit
// set. Adding one sets the top bit for 0x7f. Setting the top bit and then subtracting lowest clears it for a byte below
// lowest. A carry into another byte happens only if a byte is rejected anyway.
func ascii8(w uint64, lowest byte) bool {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	return (w|(w+ones)|^((w|tops)-uint64(lowest)*ones))&tops == 0
}

// headerName reports whether s is a lower-case field name. Names that begin with a colon belong to HTTP/2 and are not
// end-to-end headers.
func headerName(s string) bool {
	if s == "" {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case c == '-' || c == '_' || c == '.' || c == '!' || c == '#' || c == '$' || c == '%' || c == '&' ||
			c == '\'' || c == '*' || c == '+' || c == '^' || c == '`' || c == '|' || c == '~':
		default:
			return false
		}
	}
	return true
}

func headerValue(s string) bool {
	for i := 0; i < len(s); i++ {
		if (s[i] < 0x20 && s[i] != '\t') || s[i] == 0x7f {
			return false
		}
	}
	return true
}

// shorten keeps error messages and logs small, whatever was sent.
func shorten(s string) string {
	const limit = 64
	if len(s) > limit {
		return s[:limit] + "... (" + strconv.Itoa(len(s)) + " bytes)"
	}
	return s
}
