package crypt

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Bounds of a key file.
const (
	// KeyBytes is the length of a key.
	KeyBytes = 32
	// MaxIDBytes bounds the id of a key. A key in base64 is longer, so that a line with id and key in the wrong order is
	// refused before anything quotes it.
	MaxIDBytes = 32
	// MaxKeys bounds the keys of a file.
	MaxKeys = 64

	maxFileBytes = 64 << 10
)

// Keyring has the keys of a file. It is safe for concurrent use.
type Keyring struct {
	keys    map[string]*key
	ids     []string
	current *key
}

// Load reads a key file. Its errors name the line, and quote an id only if its key has the right form.
func Load(file string) (*Keyring, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFileBytes {
		return nil, fmt.Errorf("must have at most %d bytes", maxFileBytes)
	}
	return Parse(b)
}

// Parse reads the content of a key file: a line ID:BASE64 for each key, where ID is 1 to MaxIDBytes of
// letters, digits, dot, dash and underscore, and BASE64 the standard encoding of 32 bytes. The last line's key encrypts,
// all keys decrypt. Empty lines and lines that begin with # are skipped. An id or a key that occurs twice is an error.
func Parse(b []byte) (*Keyring, error) {
	r := &Keyring{keys: make(map[string]*key)}
	seen := make(map[[sha256.Size]byte]string)
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, maxFileBytes+1)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		id, encoded, found := strings.Cut(line, ":")
		if !found || !validID(id) {
			return nil, fmt.Errorf("line %d: must be ID:BASE64, with an id of 1 to %d letters, digits, dots, dashes and underscores", n, MaxIDBytes)
		}
		secret, err := base64.StdEncoding.Strict().DecodeString(encoded)
		if err != nil || len(secret) != KeyBytes {
			// Not even the id: in the wrong order that is the key.
			return nil, fmt.Errorf("line %d: the key must be %d bytes in base64", n, KeyBytes)
		}
		if r.keys[id] != nil {
			return nil, fmt.Errorf("line %d: the id %q is there twice", n, id)
		}
		digest := sha256.Sum256(secret)
		if other, twice := seen[digest]; twice {
			return nil, fmt.Errorf("line %d: the keys %q and %q are the same", n, other, id)
		}
		if len(r.ids) == MaxKeys {
			return nil, fmt.Errorf("line %d: must have at most %d keys", n, MaxKeys)
		}
		seen[digest] = id
		r.current = newKey(id, secret)
		r.keys[id] = r.current
		r.ids = append(r.ids, id)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if r.current == nil {
		return nil, errors.New("must have at least one line ID:BASE64")
	}
	return r, nil
}

func validID(id string) bool {
	return id != "" && len(id) <= MaxIDBytes && !strings.ContainsFunc(id, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '-' && c != '_'
	})
}

// Current is the id of the key that encrypts.
func (r *Keyring) Current() string { return r.current.id }

// IDs are the ids of all keys in the order of the file.
func (r *Keyring) IDs() []string { return slices.Clone(r.ids) }

// Has reports whether the keyring has a key with this id.
func (r *Keyring) Has(id string) bool { return r.keys[id] != nil }

// String keeps the keys out of whatever prints a keyring.
func (r *Keyring) String() string {
	return fmt.Sprintf("%d keys, %q encrypts", len(r.ids), r.current.id)
}

// GoString is String.
func (r *Keyring) GoString() string { return r.String() }
