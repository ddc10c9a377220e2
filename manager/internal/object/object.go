// Package object is a small client of object storage: five calls, each with a
// body that fits into memory, and with the conditions that a lease and an index
// need.
//
// Implementations: S3 and compatible services (s3://BUCKET/PREFIX), Google Cloud
// Storage (gs://BUCKET/PREFIX), Azure Blob Storage (azblob://CONTAINER/PREFIX), and a directory (file:///DIR) for tests and small set-ups. Package objecttest has the
// suite that each of them passes.
package object

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Errors of a Store, possibly wrapped; test with errors.Is. Every other error,
// those of contexts included, leaves open whether a write or a deletion happened.
var (
	// ErrNotFound is returned by Get when there is no such object.
	ErrNotFound = errors.New("object: not found")
	// ErrExists is returned by Create when there is such an object already. It may
	// be the caller's own, when the answer to an earlier try was lost.
	ErrExists = errors.New("object: exists already")
	// ErrChanged is returned by Replace when the object has another version or is
	// gone. The new version may be the caller's own, as with ErrExists.
	ErrChanged = errors.New("object: was changed meanwhile")
	// ErrTooLarge is returned by Create and Replace for a body beyond MaxBytes, and
	// by Get for such an object.
	ErrTooLarge = errors.New("object: too large")
)

const (
	// MaxBytes bounds the body of an object: 64 MiB.
	MaxBytes = 64 << 20
	// MaxName bounds the name of an object, without the store's prefix, in bytes.
	MaxName = 512
	// MaxList bounds what one List returns.
	MaxList = 1000
)

// Version names the content of an object. It is opaque, and never empty for an
// object that exists.
type Version string

// Info describes an object in a listing.
type Info struct {
	Name  string
	Bytes int64
	// Modified is by the store's clock.
	Modified time.Time
}

// Store keeps objects by name. Names are one or more words of a to z, A to Z, 0 to
// 9, ".", "_" and "-", with "/" between them; a word does not begin with a dot.
// A body has at least one byte. All methods are safe for concurrent use, respect ctx, and never keep or change a
// body that they are given.
type Store interface {
	// Create writes an object that must not exist.
	Create(ctx context.Context, name string, body []byte) (Version, error)
	// Replace writes an object that must still have that version.
	Replace(ctx context.Context, name string, body []byte, old Version) (Version, error)
	// Get reads an object. It sees every write that was answered before.
	Get(ctx context.Context, name string) ([]byte, Version, error)
	// List returns, in order of their names, at most MaxList objects whose names
	// begin with prefix and are greater than after. It may return fewer than there
	// are, but at least one if there is any. It may be stale.
	List(ctx context.Context, prefix, after string) ([]Info, error)
	// Delete removes an object; it is no error when there is none.
	Delete(ctx context.Context, name string) error
	// String is the store's URL, without secrets.
	String() string
}

// All lists every object whose name begins with prefix.
func All(ctx context.Context, s Store, prefix string, fn func(Info) error) error {
	after := ""
	for {
		page, err := s.List(ctx, prefix, after)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, o := range page {
			if err := fn(o); err != nil {
				return err
			}
		}
		after = page[len(page)-1].Name
	}
}

// checkName returns an error for a name that is not allowed.
func checkName(name string) error {
	if name == "" || len(name) > MaxName {
		return fmt.Errorf("object: name %q: must have 1 to %d bytes", name, MaxName)
	}
	for word := range strings.SplitSeq(name, "/") {
		if word == "" || word[0] == '.' {
			return fmt.Errorf("object: name %q: must not have an empty word, or one that begins with a dot", name)
		}
		for _, c := range []byte(word) {
			if !allowed(c) {
				return fmt.Errorf("object: name %q: byte %q is not allowed", name, c)
			}
		}
	}
	return nil
}

func allowed(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
}

// checkBody returns an error for a name or a body that must not be written.
func checkBody(name string, body []byte) error {
	if err := checkName(name); err != nil {
		return err
	}
	if len(body) == 0 {
		return fmt.Errorf("object: %s: the body is empty", name)
	}
	if len(body) > MaxBytes {
		return fmt.Errorf("%w: %s has %d bytes, allowed are %d", ErrTooLarge, name, len(body), MaxBytes)
	}
	return nil
}
