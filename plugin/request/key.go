package request

import (
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/internal/fields"
	"github.com/oncegate/oncegate/plugin/internal/jsonguard"
)

// Key is a client's key. The zero value means that there is none.
type Key struct {
	// Value is the key itself, see api.ValidKey.
	Value string
	// Structured says that Value is {client_id}:{sequence}:{nonce} and that
	// the parts are set.
	Structured bool
	api.StructuredKey
}

// Error says why a request is refused because of its key. The status is always 400.
type Error struct {
	Code   api.Code // CodeInvalidKey, CodeKeyRequired or CodeInvalidRequest
	Detail string   // names the source, the value and what is allowed
}

// Error returns the detail.
func (e *Error) Error() string { return e.Detail }

// Problem returns the answer to the client.
func (e *Error) Problem() api.Problem {
	title := "The idempotency key is not valid"
	switch e.Code {
	case api.CodeKeyRequired:
		title = "An idempotency key is required"
	case api.CodeInvalidRequest:
		title = "The idempotency key cannot be read"
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
		return Key{}, invalid("header ", k.Header, "sent "+strconv.Itoa(n)+" times; allowed: once")
	}
	key, wrong := api.HeaderKey(raw)
	return check(k, "header ", k.Header, key, wrong)
}

// JSONKey reads the key from the JSON body at k.JSONPath. complete reports
// whether body is the whole body; an incomplete body gives the zero Key. So does
// a body that is not JSON, or that has nothing or null at the path. Anything else
// there but a string or a number is an *Error.
func JSONKey(k *config.Key, body []byte, complete bool) (Key, *Error) {
	if k.JSONPath == "" || !complete || !jsonguard.Valid(body) {
		return Key{}, nil
	}
	const source = "body field "
	v, twice := jsonAt(body, k.JSONPath)
	if twice {
		return Key{}, invalid(source, k.JSONPath, twiceInBody)
	}
	switch v.Type {
	case gjson.String:
		return check(k, source, k.JSONPath, v.Str, api.WrongKey(v.Str))
	case gjson.Number:
		// The raw text keeps every digit of a large number. 1 and 1.0 are different
		// keys.
		return check(k, source, k.JSONPath, v.Raw, api.WrongKey(v.Raw))
	case gjson.Null:
		return Key{}, nil
	}
	return Key{}, invalid(source, k.JSONPath, "neither a string nor a number")
}

// DerivedKey makes the key from the digest of the whole body if k.Derive asks for
// it. An empty body, and one longer than the limit, give the zero Key, because
// their digests would be equal for different payloads.
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
	if len(k.Sources) > 0 {
		for i := range k.Sources {
			if s := &k.Sources[i]; !s.Optional && from == "" {
				from = s.Text
			} else if !s.Optional {
				from += " and " + s.Text
			}
		}
	} else if k.Header != "" {
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

// check makes the Key of a value that a source has, unless something is wrong with it.
func check(k *config.Key, kind, source, value, wrong string) (Key, *Error) {
	if wrong != "" {
		return Key{}, invalid(kind, source, wrong)
	}
	key := Key{Value: value}
	key.StructuredKey, key.Structured = api.ParseStructuredKey(value)
	if wrong := wrongFormat(k, value); wrong != "" {
		return Key{}, invalid(kind, source, wrong)
	}
	if k.Format == config.FormatUUID {
		key.Value = fields.Lower(value) // the value counts, not how it is written
	}
	return key, nil
}

func invalid(kind, source, reason string) *Error {
	return &Error{Code: api.CodeInvalidKey, Detail: kind + source + ": " + reason}
}
