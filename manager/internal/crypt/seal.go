package crypt

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	marker  = 0 // no plain value begins with it
	version = 1

	saltBytes  = 16
	nonceBytes = 12
	tagBytes   = 16

	// perSalt bounds the values under one salt.
	perSalt = 1 << 31
	// maxDerived bounds the derived keys that a key remembers for opening: one for each process that wrote.
	maxDerived = 256
)

// MaxOverhead bounds what sealing adds to a value, in bytes.
const MaxOverhead = 3 + MaxIDBytes + saltBytes + nonceBytes + tagBytes

// ErrDamaged is returned for a sealed value that does not open: it was changed, cut off, copied from another name, or
// sealed under another key with the same id.
var ErrDamaged = errors.New("it is encrypted and does not open: it was changed or moved, or the key is another one")

// NoKeyError is returned for a value that was sealed under a key that the keyring does not have.
type NoKeyError struct{ ID string }

func (e *NoKeyError) Error() string {
	return fmt.Sprintf("it is encrypted under the key %q, which --encryption-key-file does not have", e.ID)
}

// key is a key of the file.
type key struct {
	id      string
	secret  []byte
	sealing atomic.Pointer[sealing]

	mu      sync.RWMutex
	derived map[[saltBytes]byte]cipher.AEAD
}

// sealing is a derived key that encrypts.
type sealing struct {
	header []byte // up to the nonce
	aead   cipher.AEAD
	left   atomic.Int64
}

func newKey(id string, secret []byte) *key {
	return &key{id: id, secret: secret, derived: make(map[[saltBytes]byte]cipher.AEAD)}
}

// derive makes the cipher of a salt.
func (k *key) derive(salt []byte) cipher.AEAD {
	sub, err := hkdf.Key(sha256.New, k.secret, salt, "oncegate sealed value 1", KeyBytes)
	if err != nil {
		panic(err) // only of lengths
	}
	block, err := aes.NewCipher(sub)
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return aead
}

// sealer returns the derived key for one more value.
func (k *key) sealer() *sealing {
	for {
		s := k.sealing.Load()
		if s != nil && s.left.Add(-1) >= 0 {
			return s
		}
		header := append([]byte{marker, version, byte(len(k.id))}, k.id...)
		salt := make([]byte, saltBytes)
		rand.Read(salt) // never fails
		fresh := &sealing{header: append(header, salt...), aead: k.derive(salt)}
		fresh.left.Store(perSalt)
		k.sealing.CompareAndSwap(s, fresh)
	}
}

// opener returns the derived key of a salt.
func (k *key) opener(salt []byte) cipher.AEAD {
	s := [saltBytes]byte(salt)
	k.mu.RLock()
	aead := k.derived[s]
	k.mu.RUnlock()
	if aead != nil {
		return aead
	}
	aead = k.derive(salt)
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.derived) >= maxDerived {
		clear(k.derived)
	}
	k.derived[s] = aead
	return aead
}

// scratch are buffers for what a tag covers besides the value.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

// covered appends what the tag covers besides the value. The namespace has no zero byte.
func covered(dst, header []byte, namespace, name string) []byte {
	dst = append(append(dst, header...), namespace...)
	return append(append(dst, 0), name...)
}

// Seal appends plain, sealed under the current key for a name in a namespace. The namespace must not have a zero byte.
func (r *Keyring) Seal(dst []byte, namespace, name string, plain []byte) []byte {
	s := r.current.sealer()
	buf := scratch.Get().(*[]byte)
	*buf = covered((*buf)[:0], s.header, namespace, name)
	dst = append(dst, s.header...)
	at := len(dst)
	dst = append(dst, make([]byte, nonceBytes)...)
	rand.Read(dst[at:])
	dst = s.aead.Seal(dst, dst[at:at+nonceBytes:at+nonceBytes], plain, *buf)
	scratch.Put(buf)
	return dst
}

// Open returns the plain value of one that was sealed for this namespace and name. It does not change sealed. Errors:
// *NoKeyError, ErrDamaged, and one for a form that this program does not know.
func (r *Keyring) Open(namespace, name string, sealed []byte) ([]byte, error) {
	id, rest, err := split(sealed)
	if err != nil {
		return nil, err
	}
	k := r.keys[string(id)]
	if k == nil {
		return nil, &NoKeyError{ID: strings.ToValidUTF8(string(id), "?")}
	}
	header := sealed[:len(sealed)-len(rest)+saltBytes]
	salt, nonce, text := rest[:saltBytes], rest[saltBytes:saltBytes+nonceBytes], rest[saltBytes+nonceBytes:]
	buf := scratch.Get().(*[]byte)
	*buf = covered((*buf)[:0], header, namespace, name)
	plain, err := k.opener(salt).Open(make([]byte, 0, len(text)-tagBytes), nonce, text, *buf)
	scratch.Put(buf)
	if err != nil {
		return nil, ErrDamaged
	}
	return plain, nil
}

// split returns the id of the key and what follows it.
func split(sealed []byte) (id, rest []byte, err error) {
	switch {
	case !IsSealed(sealed):
		return nil, nil, errors.New("it is not encrypted")
	case len(sealed) < 3:
		return nil, nil, ErrDamaged
	case sealed[1] != version:
		return nil, nil, fmt.Errorf("it is encrypted in the form %d, this program reads %d", sealed[1], version)
	}
	n := int(sealed[2])
	if n == 0 || n > MaxIDBytes || len(sealed) < 3+n+saltBytes+nonceBytes+tagBytes {
		return nil, nil, ErrDamaged
	}
	return sealed[3 : 3+n], sealed[3+n:], nil
}

// IsSealed reports whether a value is sealed.
func IsSealed(value []byte) bool { return len(value) > 0 && value[0] == marker }

// KeyOf returns the id of the key that a value was sealed under: "" for a plain one. ok is false for a sealed value that
// is damaged.
func KeyOf(value []byte) (id string, ok bool) {
	if !IsSealed(value) {
		return "", true
	}
	b, _, err := split(value)
	return string(b), err == nil
}

// SizeOf returns the length of the plain value, without opening a sealed one; 0 for one that is damaged.
func SizeOf(value []byte) int {
	if !IsSealed(value) {
		return len(value)
	}
	_, rest, err := split(value)
	if err != nil {
		return 0
	}
	return len(rest) - saltBytes - nonceBytes - tagBytes
}
