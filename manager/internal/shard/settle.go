package shard

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// Want is what a manager is started with; the zero value of a field asks for nothing.
type Want struct {
	// Name is the shard that the ledger is to be.
	Name string
	// Was, with Name, is the name that the data may have so far: they are renamed.
	Was string
	// Shards is the list, each name once.
	Shards []string
	// Version of the list. A list that is not the one in force needs a higher version than that has; 0 is the
	// next one, for a list that was never in force.
	Version uint64
	// Used says that the store has entries already, and that other managers may be at work on it.
	Used bool
}

// Change is what a start changed.
type Change struct {
	// Before and After are the record as it was, zero when there was none, and as it is.
	Before, After Identity
}

// Named reports whether the ledger got its name, or another one.
func (c *Change) Named() bool { return c.Before.Name != c.After.Name }

// Listed reports whether another list is in force now.
func (c *Change) Listed() bool { return !slices.Equal(c.Before.Shards, c.After.Shards) }

// Error refuses what a manager was started with. Nothing was changed.
type Error struct{ msg string }

func (e *Error) Error() string { return e.msg }

func refuse(format string, args ...any) error { return &Error{fmt.Sprintf(format, args...)} }

// settle returns what the record becomes; found is nil when there is none.
func settle(found *Identity, w Want) (Identity, error) {
	var next Identity
	if found == nil {
		next.ID = newID()
	} else {
		next = *found
	}
	switch {
	case w.Name == "" || w.Name == next.Name:
	case next.Name == "" || next.Name == w.Was:
		next.Name = w.Name
	default:
		return Identity{}, refuse("--shard %q: these are the data of the shard %q (ledger %s); start it with that name, or, to rename it on purpose, with --shard-was %q",
			w.Name, next.Name, next.ID, next.Name)
	}
	if len(w.Shards) == 0 {
		return next, nil
	}
	if w.Used && (found == nil || found.Name == "") {
		return Identity{}, refuse("--shards %q: this ledger has had no name so far, and managers that share it may not know of the list; start all of them with --shard %q alone first",
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
		return Identity{}, refuse("--shards %q: the ledger has another list of version %d, %q; a change of the list needs a --shards-version above that, and not %d",
			names, next.Version, strings.Join(next.Shards, ","), w.Version)
	case w.Version == 0 && slices.Contains(next.past, digestOf(list)):
		return Identity{}, refuse("--shards %q: the ledger had this list before that of now, %q, and to go back can make keys run twice; to do so on purpose give --shards-version %d",
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
