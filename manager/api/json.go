package api

import (
	"bytes"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

// The JSON form. Requests are read strictly: an unknown field, or one that is given twice or has the wrong type, is
// rejected by name, so a misspelt option is noticed. Replies are read leniently, so a newer manager may add fields.
//
// JSON strings are Unicode, so header values that are not UTF-8 cannot be sent in this form. A caller that needs them
// byte for byte uses the raw form.

// MaxJSONDepth bounds the nesting of JSON that CheckJSON accepts.
const MaxJSONDepth = 64

// maxMembers bounds the members of an object of the API, which keeps the search for duplicates cheap.
const maxMembers = 64

// requestDepth is the nesting of the deepest request: result.headers[i][j].
const requestDepth = 4

// CheckJSON reports whether b is one JSON value nested at most maxDepth deep.
func CheckJSON(b []byte, maxDepth int) error {
	if err := CheckDepth(b, maxDepth); err != nil {
		return err
	}
	if !gjson.ValidBytes(b) {
		return &FieldError{"body", "", "must be one valid JSON value"}
	}
	return nil
}

// CheckDepth reports whether a JSON value is nested at most maxDepth deep. It bounds the stack that a parser may need
// before the parser sees b, which need not be JSON.
func CheckDepth(b []byte, maxDepth int) error {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = endOfString(b, i+1)
		case '{', '[':
			depth++
			if depth > maxDepth {
				return &FieldError{"body", "", "must be JSON nested at most " + strconv.Itoa(maxDepth) + " deep"}
			}
		case '}', ']':
			depth--
		}
	}
	return nil
}

// endOfString returns the index of the quote that ends the string whose text begins at i, len(b) when
// none does. It reads each byte a bounded number of times, however many escapes there are.
func endOfString(b []byte, i int) int {
	for quote := i; ; quote++ { // after an escaped one
		n := bytes.IndexByte(b[quote:], '"')
		if n < 0 {
			return len(b)
		}
		quote += n
		for i < quote {
			escape := bytes.IndexByte(b[i:quote], '\\')
			if escape < 0 {
				return quote
			}
			i += escape + 2
		}
		if i == quote {
			return quote
		}
	}
}

// ParseObject reads the JSON object in b and calls field for each member in order. It rejects anything but one valid
// object nested at most maxDepth deep, and members that are given twice. Errors are *FieldError.
func ParseObject(b []byte, maxDepth int, field func(name string, v gjson.Result) error) error {
	if err := CheckJSON(b, maxDepth); err != nil {
		return err
	}
	return Members("", gjson.ParseBytes(b), field)
}

// UnknownField is the error for a member that the request does not have.
func UnknownField(name string) error {
	return &FieldError{shorten(name), "", "unknown field"}
}

// Members does what ParseObject does with the value of the field parent, "" for the whole body, which CheckJSON has accepted.
func Members(parent string, object gjson.Result, field func(name string, v gjson.Result) error) error {
	what, prefix := "body", ""
	if parent != "" {
		what, prefix = parent, parent+"."
	}
	if !object.IsObject() {
		return &FieldError{what, "", "must be a JSON object"}
	}
	var err error
	var seenBuf [16]string
	seen := seenBuf[:0]
	object.ForEach(func(k, v gjson.Result) bool {
		name, ok := text(k)
		if !ok {
			err = &FieldError{shorten(prefix + name), "", "must have a name of Unicode text"}
			return false
		}
		for _, s := range seen {
			if s == name {
				err = &FieldError{shorten(prefix + name), "", "given twice"}
				return false
			}
		}
		if len(seen) == maxMembers {
			err = &FieldError{what, "", "must have at most " + strconv.Itoa(maxMembers) + " members"}
			return false
		}
		seen = append(seen, name)
		err = field(name, v)
		return err == nil
	})
	return err
}

// StringField returns a member that must be a string. The error is a *FieldError.
func StringField(name string, v gjson.Result) (string, error) {
	if v.Type != gjson.String {
		return "", &FieldError{name, shorten(v.Raw), "must be a string"}
	}
	return v.String(), nil
}

// TextField is StringField for names and ids. Bytes that are not UTF-8 and escapes of half a surrogate pair would become U+FFFD, and
// two ids one, so they are rejected.
func TextField(name string, v gjson.Result) (string, error) {
	if v.Type != gjson.String {
		return StringField(name, v)
	}
	s, ok := text(v)
	if !ok {
		return "", &FieldError{name, shorten(s), "must be Unicode text: UTF-8, without half a surrogate pair"}
	}
	return s, nil
}

// text returns a string, and whether it is what the JSON says: nothing in it was replaced.
func text(v gjson.Result) (s string, ok bool) {
	s, raw := v.String(), v.Raw
	if !utf8.ValidString(s) {
		return strings.ToValidUTF8(s, "\uFFFD"), false
	}
	if !strings.Contains(s, "\uFFFD") {
		return s, true
	}
	for at := strings.IndexByte(raw, '\\'); at >= 0 && at+1 < len(raw); {
		n := 2
		if r := escaped(raw[at:]); utf16.IsSurrogate(r) {
			if n = 12; utf16.DecodeRune(r, escaped(raw[min(at+6, len(raw)):])) == utf8.RuneError {
				return s, false
			}
		}
		next := strings.IndexByte(raw[at+n:], '\\')
		if next < 0 {
			break
		}
		at += n + next
	}
	return s, true
}

// escaped returns the character of an escape with four digits at the beginning of a string, 0 when there is none.
func escaped(raw string) rune {
	if len(raw) < 6 || raw[:2] != `\u` {
		return 0
	}
	n, err := strconv.ParseUint(raw[2:6], 16, 16)
	if err != nil {
		return 0
	}
	return rune(n)
}

// MillisField returns a member that must be a whole number of milliseconds from
// 0 to MaxTTL. The error is a *FieldError.
func MillisField(name string, v gjson.Result) (time.Duration, error) {
	n, ok := wholeNumber(v)
	if !ok || n > int64(MaxTTL/time.Millisecond) {
		return 0, &FieldError{name, shorten(v.Raw), allowedMillis}
	}
	return time.Duration(n) * time.Millisecond, nil
}

// TTLField is MillisField for times of which 0 makes no sense.
func TTLField(name string, v gjson.Result) (time.Duration, error) {
	d, err := MillisField(name, v)
	if err != nil || d == 0 {
		err = &FieldError{name, shorten(v.Raw), allowedTTL}
	}
	return d, err
}

// WholeNumber returns the digits of a JSON number that is whole, with its sign. A fraction of zeros is cut off, because JSON does not
// tell 1 from 1.0. Every other text is returned as it is.
func WholeNumber(raw string) string {
	if whole, fraction, ok := strings.Cut(raw, "."); ok && fraction != "" && strings.Trim(fraction, "0") == "" {
		return whole
	}
	return raw
}

// wholeNumber accepts no sign and no exponent.
func wholeNumber(v gjson.Result) (int64, bool) {
	raw := WholeNumber(v.Raw)
	if v.Type != gjson.Number || len(raw) > 18 {
		return 0, false
	}
	n, err := strconv.ParseUint(raw, 10, 63)
	return int64(n), err == nil
}

// ParseJSON reads the JSON form strictly. It does not validate the fields'
// values. The error is a *FieldError.
func (r *ReserveRequest) ParseJSON(b []byte) error {
	*r = ReserveRequest{}
	return ParseObject(b, requestDepth, r.jsonField)
}

func (r *ReserveRequest) jsonField(name string, v gjson.Result) (err error) {
	switch name {
	case fieldFingerprint:
		r.Fingerprint, err = StringField(name, v)
	case fieldPendingTTL:
		r.PendingTTL, err = TTLField(name, v)
	case fieldWait:
		r.Wait, err = MillisField(name, v)
	case fieldUnknownTTL:
		if r.UnknownTTL, err = MillisField(name, v); r.UnknownTTL == 0 {
			r.UnknownTTL = NoUnknown
		}
	default:
		err = targetField(name, v, &r.Key, &r.Scope, &r.Token, &r.Durability)
	}
	return err
}

// AppendJSON appends the JSON form.
func (r *ReserveRequest) AppendJSON(dst []byte) []byte {
	dst = appendJSONTarget(dst, r.Key, r.Scope, r.Token)
	dst = appendJSONOptional(dst, fieldFingerprint, r.Fingerprint)
	dst = appendJSONMillis(dst, fieldPendingTTL, r.PendingTTL)
	dst = appendJSONMillis(dst, fieldWait, r.Wait)
	if r.UnknownTTL < 0 {
		dst = append(dst, `,"`+fieldUnknownTTL+`":0`...)
	}
	dst = appendJSONMillis(dst, fieldUnknownTTL, r.UnknownTTL)
	dst = appendJSONDurability(dst, r.Durability)
	return append(dst, '}')
}

// ParseJSON reads the JSON form strictly. It does not validate the fields' values, but a result must be present. The
// error is a *FieldError.
func (r *FinishRequest) ParseJSON(b []byte) error {
	*r = FinishRequest{}
	found := false
	err := ParseObject(b, requestDepth, func(name string, v gjson.Result) error {
		found = found || name == fieldResult
		return r.jsonField(name, v)
	})
	if err == nil && !found {
		err = &FieldError{fieldResult, "", "is missing: must be {status, headers, body}"}
	}
	return err
}

func (r *FinishRequest) jsonField(name string, v gjson.Result) (err error) {
	switch name {
	case fieldFingerprint:
		r.Fingerprint, err = StringField(name, v)
	case fieldTTL:
		r.TTL, err = TTLField(name, v)
	case fieldResult:
		err = r.Result.parseJSON(v)
	default:
		err = targetField(name, v, &r.Key, &r.Scope, &r.Token, &r.Durability)
	}
	return err
}

// AppendJSON appends the JSON form.
func (r *FinishRequest) AppendJSON(dst []byte) []byte {
	dst = appendJSONTarget(dst, r.Key, r.Scope, r.Token)
	dst = appendJSONOptional(dst, fieldFingerprint, r.Fingerprint)
	dst = appendJSONMillis(dst, fieldTTL, r.TTL)
	dst = appendJSONDurability(dst, r.Durability)
	dst = append(dst, `,"result":`...)
	dst = r.Result.AppendJSON(dst)
	return append(dst, '}')
}

// ParseJSON reads the JSON form strictly. It does not validate the fields'
// values. The error is a *FieldError.
func (r *ReleaseRequest) ParseJSON(b []byte) error {
	*r = ReleaseRequest{}
	return ParseObject(b, requestDepth, func(name string, v gjson.Result) error {
		return targetField(name, v, &r.Key, &r.Scope, &r.Token, &r.Durability)
	})
}

// AppendJSON appends the JSON form.
func (r *ReleaseRequest) AppendJSON(dst []byte) []byte {
	dst = appendJSONTarget(dst, r.Key, r.Scope, r.Token)
	return append(appendJSONDurability(dst, r.Durability), '}')
}

// targetField reads a field that all requests have.
func targetField(name string, v gjson.Result, key, scope, token *string, durability *Durability) (err error) {
	switch name {
	case fieldKey:
		*key, err = StringField(name, v)
	case fieldScope:
		*scope, err = StringField(name, v)
	case fieldToken:
		*token, err = StringField(name, v)
	case fieldDurability:
		*durability, err = durabilityField(name, v)
	default:
		err = UnknownField(name)
	}
	return err
}

func durabilityField(name string, v gjson.Result) (Durability, error) {
	d, ok := ParseDurability(v.String())
	if v.Type != gjson.String {
		return d, &FieldError{name, shorten(v.Raw), "must be " + DurabilityNames}
	}
	if !ok {
		return d, &FieldError{name, shorten(v.String()), "must be " + DurabilityNames}
	}
	return d, nil
}

func appendJSONDurability(dst []byte, d Durability) []byte {
	if d == DurabilityLocal {
		return dst
	}
	return appendJSONOptional(dst, fieldDurability, d.String())
}

// AppendJSON appends the JSON form. token is the caller's own; only the holder of a reservation gets it back.
func (r *ReserveReply) AppendJSON(dst []byte, token string) []byte {
	dst = append(dst, `{"state":"`...)
	dst = append(dst, r.State.String()...)
	dst = append(dst, '"')
	if r.State == StateReserved {
		dst = appendJSONOptional(dst, fieldToken, token)
	}
	if r.State != StateReleased && r.State != StateNone {
		dst = append(dst, `,"expires_in_ms":`...)
		dst = strconv.AppendInt(dst, millis(r.ExpiresIn), 10)
	}
	if r.State.Terminal() && r.Result.Status != 0 {
		dst = append(dst, `,"result":`...)
		dst = r.Result.AppendJSON(dst)
	}
	return append(dst, '}')
}

// ParseJSON reads the JSON form and ignores unknown fields.
func (r *ReserveReply) ParseJSON(b []byte) error {
	*r = ReserveReply{}
	return ParseObject(b, MaxJSONDepth, func(name string, v gjson.Result) (err error) {
		switch name {
		case "state":
			var ok bool
			if r.State, ok = ParseState(v.String()); !ok {
				err = &FieldError{name, shorten(v.Raw), "unknown state"}
			}
		case "expires_in_ms":
			r.ExpiresIn, err = MillisField(name, v)
		case fieldResult:
			err = r.Result.parseJSON(v)
		}
		return err
	})
}

// ParseJSON reads a problem as the manager writes it, and ignores unknown fields.
func (p *Problem) ParseJSON(b []byte) error {
	*p = Problem{}
	return ParseObject(b, MaxJSONDepth, func(name string, v gjson.Result) error {
		switch name {
		case "status":
			n, ok := wholeNumber(v)
			if !ok || n < 100 || n > MaxStatus {
				return &FieldError{name, shorten(v.Raw), allowedStatus}
			}
			p.Status = int(n)
		case "code":
			p.Code = Code(v.String())
		case "title":
			p.Title = v.String()
		case "detail":
			p.Detail = v.String()
		}
		return nil
	})
}

func appendJSONTarget(dst []byte, key, scope, token string) []byte {
	dst = append(dst, `{"key":`...)
	dst = AppendJSONString(dst, key)
	dst = appendJSONOptional(dst, fieldScope, scope)
	dst = append(dst, `,"token":`...)
	return AppendJSONString(dst, token)
}

func appendJSONOptional(dst []byte, name, value string) []byte {
	if value == "" {
		return dst
	}
	dst = append(dst, ',', '"')
	dst = append(dst, name...)
	dst = append(dst, '"', ':')
	return AppendJSONString(dst, value)
}

func appendJSONMillis(dst []byte, name string, d time.Duration) []byte {
	if d <= 0 {
		return dst
	}
	dst = append(dst, ',', '"')
	dst = append(dst, name...)
	dst = append(dst, '"', ':')
	return strconv.AppendInt(dst, millis(d), 10)
}

// millis rounds up, as the raw form does, so a time that is not over is never sent as 0.
func millis(d time.Duration) int64 {
	if d < 0 {
		return 0
	}
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
