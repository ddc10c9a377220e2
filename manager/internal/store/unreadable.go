package store

import (
	"errors"
	"fmt"
)

// ErrUnreadable is what every *UnreadableError wraps.
var ErrUnreadable = errors.New("store: unreadable record")

// UnreadableError says that a record exists but cannot be read: another version of the program wrote it, its value is
// damaged, or an edit from outside changed what the engine stores with it. It affects only that record. The program
// leaves such a record unchanged, skips it, and answers calls that name it with this error.
type UnreadableError struct {
	Collection Collection
	Key        string
	// Reason completes the sentence "the record cannot be read: ...".
	Reason string
	// Elsewhere says that other managers of the store can read the record: they have the key with which it is encrypted.
	Elsewhere bool
}

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("record %+q of %s cannot be read: %s", e.Key, e.Collection, e.Reason)
}

// ReadableElsewhere reports whether err says that other managers of the store can read a record. Such a record is not
// deleted, and not skipped where others would never hear of it again.
func ReadableElsewhere(err error) bool {
	var u *UnreadableError
	return errors.As(err, &u) && u.Elsewhere
}

// Unwrap returns ErrUnreadable.
func (e *UnreadableError) Unwrap() error { return ErrUnreadable }
