// Package request reads from a request what decides about duplicates: the
// client's key, the scope that separates tenants and endpoints, and the
// fingerprint that tells a retry from another request under the same key.
//
// All three are pure functions of the request and the route's settings, so a
// retry gives the same results on any worker, gate and version that shares the
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
//	entry hash  = first 16 bytes of SHA-256( first 16 bytes of the scope's digest, key )
//	text        = length bytes
//	header      = number of values, text for each value
//
// Lengths and numbers are varints. A host enters the scope in lower case, without port
// and trailing dot, a path without its query. Hosts that have neither port nor dot have
// the same scope as before that rule, so the label stayed.
//
// Two different inputs never give the same bytes: every text has its length in front,
// and the last byte of a fingerprint in body mode tells what stands before it. The key
// comes last and needs no length.
// Headers that may hold credentials only ever enter a digest; nothing here keeps
// or returns them.
package request
