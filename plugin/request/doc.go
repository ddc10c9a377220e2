// Package request reads three things from a request: the client's key, the scope
// that separates tenants and endpoints, and the fingerprint that distinguishes a retry
// from another request with the same key.
//
// All three are pure functions of the request and the route's settings. So a
// retry gives the same results on every worker, gate and version that uses the
// encodings below.
//
//	scope       = base64url( H( "og scope 1" part* ) )
//	  part      = kind(1 byte) text               host, path, path and query, method
//	            | kind(1 byte) text(name) header  a header
//	  H         = SHA-256, or HMAC-SHA-256 when there is a secret
//	fingerprint = hex( first 16 bytes of D ) [ "." hex( length ) ] [ "." hex( body ) ], as api.SameRequest describes it
//	  D         = H( "og print 1" text(method) text(path) query type header(content-digest) { text(name) header(name) } )
//	  query     = 0 | 1 text(query as sent)    without settings
//	            | number of parameters, text(name) text(rest) for each, ordered by name
//	  type      = header(content-type), or its values in the form of appendMediaType, or 0
//	  length    = first 4 bytes of SHA-256( last 16 bytes of D, "l", length of the body )
//	  body      = first 16 bytes of SHA-256( last 16 bytes of D, what )
//	  what      = "b" body "w"                 the whole body
//	            | "b" body "t"                 the body up to the limit
//	            | "c" canonical "w"            body: canonical_json, and the body has that form
//	            | "c" form "w"                 body: form; each field's text(name) text(value) without escapes, ordered by name
//	            | "b" part* end                a multipart body; see parts
//	  part      = { kind(1 byte) text(header) } "p" SHA-256( content )
//	  end       = "M" whole | "T" cut at the limit | "U" broken off
//	entry hash  = first 16 bytes of SHA-256( first 16 bytes of the scope's digest, key )
//	text        = length bytes
//	header      = number of values, text for each value
//
// A fingerprint has a length if it is declared or the request has no body; with a body the real one, or the declared one
// if the body is beyond the limit. It has none with a multipart body or the form of its values. It has a body in body mode only. With body: none
// it has neither.
//
// The rest of a parameter is its "=" and its value, as sent. Content-Digest counts only for bodies that are compared by
// bytes, because it depends on every byte. The names are those of fingerprint.headers. canonical is RFC 8785's form of the parts of
// a body that count; appendCanonical says how it differs.
//
// Lengths and numbers are varints. A host is digested in lower case, without port and
// trailing dot; a path without its query.
//
// Two different inputs never give the same bytes: every text has its length in front,
// and the last byte of a body's input says what stands before it. The key comes last and
// needs no length. Headers that may hold credentials go into digests only. The package
// neither keeps nor returns them.
package request
