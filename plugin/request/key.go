package request

import (
	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/internal/jsonguard"
	"github.com/tidwall/gjson"
)

// Key is a client's key. The zero value means that there is none.
type Key struct {
	// Value is the key itself, 1 to 255 bytes of visible ASCII.
	Value string
	// Structured tells that Value is {client_id}:{sequence}:{nonce} and that
	// the parts below are set.
	Structured bool
	// Client may contain colons.
	Client string
	// Sequence is a number that grows with each request of the client.
	Sequence uint64
	// Nonce is 16 hex digits (8 bytes), new at each start of the client.
	Nonce string
}

// Error says why a request is refused because of its key. The status is always 400.
type Error struct {
	Code   api.Code // CodeInvalidKey or CodeKeyRequired
	Detail string   // names the source, the value and what is allowed
}

// Error returns the detail.
func (e *Error) Error() string { return e.Detail }

// Problem returns the answer to the client.
func (e *Error) Problem() api.Problem {
	title := "The idempotency key is not valid"
	if e.Code == api.CodeKeyRequired {
		title = "An idempotency key is required"
	}
	return api.Problem{Status: 400, Code: e.Code, Title: title, Detail: e.Detail}
}

// HeaderKey reads the key from the header that k names. If the request has no such
// header, or k names none, the Key is zero. A header that is repeated, empty, too
// long or not a key is an *Error; it never counts as absent.
func HeaderKey(k *config.Key, h Headers) (Key, *Error) {
	if k.Header == "" {
		return Key{}, nil
	}
	raw, n := h.Get(k.Header)
	switch {
	case n == 0:
		return Key{}, nil
	case n > 1:
		return Key{}, invalid("header "+k.Header, "sent "+decimal(n)+" times; allowed: once")
	}
	source := "header " + k.Header
	s := trim(raw)
	if len(s) > 0 && s[0] == '"' {
		unquoted, err := unquote(source, s)
		if err != nil {
			return Key{}, err
		}
		s = unquoted
	}
	return check(k, source, s)
}

// JSONKey reads the key from the JSON body at k.JSONPath. complete tells
// whether body is the whole body; an incomplete body gives the zero Key. So does
// a body that is not JSON, or that has nothing or null at the path. Anything else
// there but a string or a number is an *Error.
func JSONKey(k *config.Key, body []byte, complete bool) (Key, *Error) {
	if k.JSONPath == "" || !complete || !jsonguard.Valid(body) {
		return Key{}, nil
	}
	v := gjson.GetBytes(body, k.JSONPath)
	source := "body field " + k.JSONPath
	switch v.Type {
	case gjson.String:
		return check(k, source, v.Str)
	case gjson.Number:
		// The raw text keeps every digit of a large number. 1 and 1.0 are different
		// keys.
		return check(k, source, v.Raw)
	case gjson.Null:
		return Key{}, nil
	}
	return Key{}, invalid(source, "neither a string nor a number")
}

// DerivedKey makes the key from the digest of the whole body if k.Derive asks for
// it. An empty body, and one longer than the limit, give the zero Key, because
// their digests would not tell different payloads apart.
func DerivedKey(k *config.Key, b *Body) Key {
	if k.Derive == config.DeriveNone || b.Len() == 0 || b.Truncated() {
		return Key{}
	}
	return Key{Value: b.hexDigest()}
}

// Missing returns the *Error for a request in which no source had a key; nil: the
// route does not require a key.
func Missing(k *config.Key) *Error {
	if !k.Required {
		return nil
	}
	var from string
	join := func(s string) {
		if from != "" {
			from += " or "
		}
		from += s
	}
	if k.Header != "" {
		join("header " + k.Header)
	}
	if k.JSONPath != "" {
		join("body field " + k.JSONPath)
	}
	if k.Derive != config.DeriveNone {
		join("a body of at most max_request_body_bytes")
	}
	return &Error{Code: api.CodeKeyRequired, Detail: "no idempotency key; expected " + from}
}

// check applies the rules that are the same for every source.
func check(k *config.Key, source, s string) (Key, *Error) {
	if len(s) == 0 {
		return Key{}, invalid(source, "empty; allowed: 1 to 255 bytes of visible ASCII")
	}
	if len(s) > api.MaxKeyBytes {
		return Key{}, invalid(source, decimal(len(s))+" bytes; allowed: 1 to 255")
	}
	for i := 0; i < len(s); i++ {
		if s[i] < 0x21 || s[i] > 0x7e {
			return Key{}, invalid(source, "byte "+decimal(i+1)+" is "+hexByte(s[i])+"; allowed: visible ASCII (0x21 to 0x7e)")
		}
	}
	key := Key{Value: s}
	key.Client, key.Sequence, key.Nonce, key.Structured = ParseStructured(s)
	if k.Format == config.FormatStructured && !key.Structured {
		return Key{}, invalid(source, "not of the form {client_id}:{sequence}:{nonce}, with a decimal sequence and a nonce of 16 hex digits")
	}
	return key, nil
}

func invalid(source, reason string) *Error {
	return &Error{Code: api.CodeInvalidKey, Detail: source + ": " + reason}
}

// trim removes the optional whitespace around a field value.
func trim(s string) string {
	for len(s) > 0 && (s[0] == ' ' || s[0] == '\t') {
		s = s[1:]
	}
	for len(s) > 0 && (s[len(s)-1] == ' ' || s[len(s)-1] == '\t') {
		s = s[:len(s)-1]
	}
	return s
}

// unquote reads an RFC 8941 string: printable ASCII in quotes, with a backslash
// before each quote and backslash in it. Parameters are not allowed.
func unquote(source, s string) (string, *Error) {
	var out []byte // nil until the first escape
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			if i != len(s)-1 {
				return "", invalid(source, "text after the closing quote; allowed: one quoted string")
			}
			if out != nil {
				return string(out), nil
			}
			return s[1:i], nil
		case '\\':
			if i+1 == len(s) || (s[i+1] != '"' && s[i+1] != '\\') {
				return "", invalid(source, `a backslash that escapes neither " nor \`)
			}
			if out == nil {
				out = append(make([]byte, 0, len(s)), s[1:i]...)
			}
			i++
			out = append(out, s[i])
		default:
			if out != nil {
				out = append(out, s[i])
			}
		}
	}
	return "", invalid(source, "the closing quote is missing")
}

func decimal(n int) string {
	var buf [20]byte
	i := len(buf)
	for {
		i--
		buf[i] = byte('0' + n%10)
		n /= 10
		if n == 0 {
			return string(buf[i:])
		}
	}
}

func hexByte(c byte) string {
	const digits = "0123456789abcdef"
	return string([]byte{'0', 'x', digits[c>>4], digits[c&15]})
}
