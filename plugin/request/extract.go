package request

import (
	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/internal/jsonguard"
	"github.com/tidwall/gjson"
)

func headerKey(k *config.Key, h Headers) (Key, *Error) {
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

func jsonKey(k *config.Key, body []byte, complete bool) (Key, *Error) {
	if k.JSONPath == "" || !complete || !jsonguard.Valid(body) {
		return Key{}, nil
	}
	v := gjson.GetBytes(body, k.JSONPath)
	source := "body field " + k.JSONPath
	switch v.Type {
	case gjson.String:
		return check(k, source, v.Str)
	case gjson.Number:
		// The digits as sent: 1 and 1.0 are different keys, and no digit of a
		// large number is lost.
		return check(k, source, v.Raw)
	case gjson.Null:
		return Key{}, nil
	}
	return Key{}, invalid(source, "neither a string nor a number")
}

func derivedKey(k *config.Key, b *Body) Key {
	if k.Derive == config.DeriveNone || b.Len() == 0 || b.Truncated() {
		return Key{}
	}
	return Key{Value: b.b.hexDigest(k.Derive)}
}

func missing(k *config.Key) *Error {
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

// check applies the rules that hold for every source.
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
	key.Client, key.Sequence, key.Nonce, key.Structured = parseStructured(s)
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

// unquote reads an RFC 8941 string: quotes around printable ASCII, in which a
// backslash stands before a quote or a backslash. Parameters are not allowed.
func unquote(source, s string) (string, *Error) {
	var out []byte // nil while nothing had to be unescaped
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

func parseStructured(s string) (client string, sequence uint64, nonce string, ok bool) {
	const nonceChars = 16
	at := len(s) - nonceChars - 1 // the colon before the nonce
	if at < 3 || s[at] != ':' {
		return "", 0, "", false
	}
	nonce = s[at+1:]
	for i := 0; i < nonceChars; i++ {
		c := nonce[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
			return "", 0, "", false
		}
	}
	start := at
	for start > 0 && s[start-1] >= '0' && s[start-1] <= '9' {
		start--
	}
	digits := s[start:at]
	// One spelling per number: no leading zeros, and it fits into 64 bits.
	if len(digits) == 0 || len(digits) > 20 || (digits[0] == '0' && len(digits) > 1) {
		return "", 0, "", false
	}
	for i := 0; i < len(digits); i++ {
		v := uint64(digits[i] - '0')
		if sequence > (1<<64-1-v)/10 {
			return "", 0, "", false
		}
		sequence = sequence*10 + v
	}
	if start < 2 || s[start-1] != ':' {
		return "", 0, "", false
	}
	return s[:start-1], sequence, nonce, true
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
