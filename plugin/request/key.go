package request

import (
	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
)

// Key is a client's key. The zero value means that there is none.
type Key struct {
	// Value is the key itself, 1 to 255 bytes of visible ASCII.
	Value string
	// Structured tells that Value is {client_id}:{sequence}:{nonce} and that
	// the parts below are set.
	Structured bool
	// Client may hold colons itself.
	Client string
	// Sequence grows per client.
	Sequence uint64
	// Nonce is 16 hex digits (8 bytes), new at each start of the client.
	Nonce string
}

// Error is a request that is refused because of its key: always a 400.
type Error struct {
	Code   api.Code // CodeInvalidKey or CodeKeyRequired
	Detail string   // names the source, what was found and what is allowed
}

// Error returns the detail.
func (e *Error) Error() string { return e.Detail }

// Problem is the answer to the client.
func (e *Error) Problem() api.Problem {
	title := "The idempotency key is not valid"
	if e.Code == api.CodeKeyRequired {
		title = "An idempotency key is required"
	}
	return api.Problem{Status: 400, Code: e.Code, Title: title, Detail: e.Detail}
}

// HeaderKey reads the key from the header that k names. Without such a header
// (or when k names none) the Key is zero. A header that is there but repeated,
// empty, too long, or not a key is an *Error, never taken for absent.
func HeaderKey(k *config.Key, h Headers) (Key, *Error) { return headerKey(k, h) }

// JSONKey reads the key from the JSON body at k.JSONPath. complete tells
// whether body is the whole body; one that is larger than the limit has no
// readable key. A body that is not JSON, or has nothing or null at the path, gives
// the zero Key; anything but a string or a number there is an *Error.
func JSONKey(k *config.Key, body []byte, complete bool) (Key, *Error) {
	return jsonKey(k, body, complete)
}

// DerivedKey makes the key from the digest of the whole body when k.Derive asks
// for it. A body that is empty or was longer than the limit gives the zero Key:
// its digest would not tell different payloads apart.
func DerivedKey(k *config.Key, b *Body) Key { return derivedKey(k, b) }

// Missing returns the *Error for a request in which no source had a key, nil
// when the route does not require one.
func Missing(k *config.Key) *Error { return missing(k) }

// ParseStructured splits {client_id}:{sequence}:{nonce} from the right, so that
// the client id may hold colons: at least one byte, then a decimal number below
// 2^64 without leading zeros, then 16 hex digits. ok is false when s has no such
// form; s may still be a plain key.
func ParseStructured(s string) (client string, sequence uint64, nonce string, ok bool) {
	return parseStructured(s)
}
