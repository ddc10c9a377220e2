// Package request reads three things from a request: the client's key, the scope
// that separates tenants and endpoints, and the fingerprint that tells a retry
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
//	fingerprint = base64url( SHA-256( "og print 1" head rest ) )
//	  head      = text(method) text(path with query) header(content-type) header(content-digest)
//	  rest      = "h" header(content-length)         in headers mode
//	            | "b" body "w"                       in body mode, the whole body
//	            | "b" body header(content-length) "t"  the body up to the limit
//	chosen      = base64url( SHA-256( "og print 2" SHA-256( parts ) what ) ), for a route with its own fingerprint settings
//	  parts     = text(method) text(path) query header(content-type) header(content-digest) { text(name) header(name) }
//	  query     = number of parameters, text(name) text(rest) for each, ordered by name
//	  what      = "h" header(content-length)           in headers mode
//	            | "n"                                  body: none
//	            | "c" canonical "w"                    body: canonical_json, and the body has that form
//	            | "b" ...                              as above
//	keyed       = base64url( HMAC-SHA-256( secret, "og keyed 1" digest of one of the fingerprints above ) )
//	entry hash  = first 16 bytes of SHA-256( first 16 bytes of the scope's digest, key )
//	text        = length bytes
//	header      = number of values, text for each value
//
// The rest of a parameter is its "=" and its value, as sent. Content-Digest counts as missing unless body is raw,
// because it tells of every byte. canonical is RFC 8785's form of the parts of a body that count; appendCanonical says
// how it differs. Where all settings have their defaults, the fingerprint is the first one above, as in releases without
// settings.
//
// Lengths and numbers are varints. A host is digested in lower case, without port and
// trailing dot; a path without its query.
//
// Two different inputs never give the same bytes: every text has its length in front,
// and in body mode the last byte tells what stands before it. The key comes last and
// needs no length. Headers that may hold credentials go into digests only. The package
// neither keeps nor returns them.
package request
