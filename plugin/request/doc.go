// Package request reads from a request what decides about duplicates: the
// client's key, the scope that separates tenants and endpoints, and the
// fingerprint that tells a retry from another request under the same key.
//
// All three are pure functions of the request and the route's settings, so a
// retry gives the same results on any worker, gate and version that shares the
// encodings below.
//
//	scope       = base64url( H( "og scope 1" part* ) )
//	  part      = kind(1 byte) [length name] present(1 byte) [length value]
//	  H         = SHA-256, or HMAC-SHA-256 when there is a secret
//	fingerprint = base64url( SHA-256( "og print 1" field* ) )
//	entry hash  = first 16 bytes of SHA-256( digest of the scope, key )
//
// A host enters the scope in lower case, without port and trailing dot. The label did not
// change with that: hosts that have neither keep their scopes.
//
// Every part of variable size is preceded by its length (a varint), so two different
// inputs never give the same bytes; only the key, which comes last, needs none.
// Headers that may hold credentials only ever enter a digest; nothing here keeps
// or returns them.
package request
