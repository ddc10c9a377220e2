package shard

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Want is what a manager's settings ask for. The zero value of a field asks for nothing.
type Want struct {
	// Name is the shard that the ledger is to be.
	Name string
	// Was, with Name, is the previous name of the data: they are renamed.
	Was string
	// Shards is the list, each name once.
	Shards []string
	// Version of the list. A list other than the one in force needs a higher version than the one in force. 0 means the
	// next version, and is allowed only for a list that was never in force.
	Version uint64
	// Restored names the restore to an older point that the data come from, or the quarantine that an operator began; ""
	// when there was none.
	Restored string
	// Used says that the store has entries already, and that other managers may be using it.
	Used bool
}

// Change is what a start changed.
type Change struct {
	// Before is the record before the start, zero when there was none. After is the record after it.
	Before, After Identity
}

// Named reports whether the ledger's name changed.
func (c *Change) Named() bool { return c.Before.Name != c.After.Name }

// Listed reports whether the list in force changed.
func (c *Change) Listed() bool { return !slices.Equal(c.Before.Shards, c.After.Shards) }

// Error rejects a manager's settings. Nothing was changed.
type Error struct{ msg string }

func (e *Error) Error() string { return e.msg }

func refuse(format string, args ...any) error { return &Error{fmt.Sprintf(format, args...)} }

// reconcile returns the new record. found is nil when there is none.
func reconcile(found *Identity, w Want, now time.Time) (Identity, error) {
	var next Identity
	if found == nil {
		next = Identity{ID: newID(), Epoch: 1, Created: now.UnixMilli(), Restored: w.Restored}
	} else {
		next = *found
	}
	if next.Restored != w.Restored && w.Restored != "" {
		next.Restored, next.Epoch = w.Restored, next.Epoch+1
	}
	switch {
	case w.Name == "" || w.Name == next.Name:
	case next.Name == "" || next.Name == w.Was:
		next.Name = w.Name
	default:
		return Identity{}, refuse("--shard %q: the data belong to shard %q (ledger %s): start the manager with that name, or rename the shard with --shard-was %q",
			w.Name, next.Name, next.ID, next.Name)
	}
	if len(w.Shards) == 0 {
		return next, nil
	}
	if w.Used && (found == nil || found.Name == "") {
		return Identity{}, refuse("--shards %q: the ledger has no name yet, and managers that share it may not know the list: first start all of them with --shard %q and without a list",
			strings.Join(w.Shards, ","), w.Name)
	}
	list := slices.Sorted(slices.Values(w.Shards))
	names := strings.Join(list, ",")
	same := slices.Equal(list, next.Shards)
	switch {
	case same:
		next.Version = max(next.Version, w.Version)
		return next, nil
	case w.Version != 0 && w.Version <= next.Version:
		return Identity{}, refuse("--shards %q: the ledger has version %d of the list, %q: another list needs a higher --shards-version, not %d",
			names, next.Version, strings.Join(next.Shards, ","), w.Version)
	case w.Version == 0 && slices.Contains(next.past, digestOf(list)):
		return Identity{}, refuse("--shards %q: the ledger had this list before the present one, %q, and going back can run keys twice: to do it anyway, give --shards-version %d",
			names, strings.Join(next.Shards, ","), next.Version+1)
	}
	if next.Shards != nil {
		next.past = append(slices.Clone(next.past), digestOf(next.Shards))
		next.past = next.past[max(0, len(next.past)-maxPast):]
	}
	next.Shards, next.Version = list, max(next.Version+1, w.Version)
	return next, nil
}

func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: it ends the program instead
	return hex.EncodeToString(b[:])
}
