package api

import (
	"encoding/hex"
	"strconv"
	"strings"
)

// HeaderKey reads an idempotency key as a header carries it: bare, or as an RFC 8941 string, which is text in quotes
// with a backslash before each quote and backslash in it. Both forms may have blanks inside, because many clients send
// such keys bare. White space around the value and parameters after a string do not count. A list is refused: a proxy
// makes one of two headers. The key is valid if wrong is ""; otherwise wrong says what is wrong and what is allowed.
func HeaderKey(value string) (key, wrong string) {
	key = strings.Trim(value, " \t")
	if strings.HasPrefix(key, `"`) {
		if key, wrong = unquote(key); wrong != "" {
			return "", wrong
		}
	} else if strings.Contains(key, ",") {
		return "", listOfKeys
	}
	if wrong = WrongKey(key); wrong != "" {
		return "", wrong
	}
	return key, ""
}

// WrongKey returns "" if ValidKey accepts key. Otherwise it says what is wrong and what is allowed.
func WrongKey(key string) string {
	if ValidKey(key) {
		return ""
	}
	if key == "" {
		return "empty; allowed: 1 to 255 bytes of printable ASCII"
	}
	if len(key) > MaxKeyBytes {
		return strconv.Itoa(len(key)) + " bytes; allowed: 1 to 255"
	}
	for i := 0; i < len(key); i++ {
		if key[i] < ' ' || key[i] > 0x7e {
			return "byte " + strconv.Itoa(i+1) + " is 0x" + hex.EncodeToString([]byte{key[i]}) + "; allowed: printable ASCII (0x20 to 0x7e)"
		}
	}
	return "a blank at an end; allowed: blanks between other bytes"
}

const listOfKeys = "a list; allowed: one key, in quotes if it has a comma"

// unquote reads an RFC 8941 string, with or without parameters. s begins with a quote.
func unquote(s string) (text, wrong string) {
	var out []byte // nil until the first escape
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			if wrong := wrongParameters(s[i+1:]); wrong != "" {
				return "", wrong
			}
			if out != nil {
				return string(out), ""
			}
			return s[1:i], ""
		case '\\':
			if i+1 == len(s) || (s[i+1] != '"' && s[i+1] != '\\') {
				return "", `a backslash that escapes neither " nor \`
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
	return "", "the closing quote is missing"
}

// wrongParameters returns "" if s, which follows a string, is empty or begins parameters.
func wrongParameters(s string) string {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && quoted:
			i++
		case c == '"':
			quoted = !quoted
		case c == ',' && !quoted:
			return listOfKeys
		}
	}
	if s != "" && s[0] != ';' {
		return "text after the closing quote; allowed: one quoted string, and parameters"
	}
	return ""
}

// StructuredKey has the parts of a key {client_id}:{sequence}:{nonce}.
type StructuredKey struct {
	// Client has at least one byte. It may contain colons and blanks.
	Client string
	// Sequence is a number that grows with each request of the client.
	Sequence uint64
	// Nonce is 16 hex digits (8 bytes), new at each start of the client.
	Nonce string
}

// ParseStructuredKey splits {client_id}:{sequence}:{nonce} from the right, so that the client id may contain colons. The
// sequence is a decimal number below 2^64 without leading zeros. ok is false if key does not have this form; it may
// still be a valid key.
func ParseStructuredKey(key string) (k StructuredKey, ok bool) {
	const nonceChars = 16
	at := len(key) - nonceChars - 1 // the colon before the nonce
	if at < 3 || key[at] != ':' {
		return k, false
	}
	nonce := key[at+1:]
	for i := 0; i < nonceChars; i++ {
		c := nonce[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
			return k, false
		}
	}
	start := at
	for start > 0 && key[start-1] >= '0' && key[start-1] <= '9' {
		start--
	}
	digits := key[start:at]
	// One spelling per number: no leading zeros, and it fits into 64 bits.
	if len(digits) > 1 && digits[0] == '0' || start < 2 || key[start-1] != ':' {
		return k, false
	}
	sequence, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return k, false
	}
	return StructuredKey{Client: key[:start-1], Sequence: sequence, Nonce: nonce}, true
}
