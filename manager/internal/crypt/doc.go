// Package crypt encrypts what the manager stores, with AES-256-GCM under the keys of a file.
//
// # Sealed values
//
// A sealed value is:
//
//	0 1            a zero byte and the version of the form
//	id             length (1 byte) and the key's id
//	salt           16 random bytes
//	nonce          12 random bytes
//	ciphertext     as long as the plain value
//	tag            16 bytes
//
// No plain value that the manager stores begins with a zero byte, so the first byte shows which values are sealed. The key of the
// file does not encrypt by itself: HKDF-SHA-256 derives a key from it and the salt. A process has a salt of its own and
// takes a new one after 2^31 values. So random nonces never come near the number at which two may be equal, however long
// a key is in use.
//
// The tag also covers everything before the nonce, the namespace of the value, such as the collection of a record, and its
// name. A value that was copied to another namespace or name does not open.
package crypt
