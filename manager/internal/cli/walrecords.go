package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/oncegate/oncegate/manager/internal/crypt"
	"github.com/oncegate/oncegate/manager/internal/feed"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/window"
	"github.com/oncegate/oncegate/manager/internal/logs/storelogs"
	"github.com/oncegate/oncegate/manager/internal/peers"
	"github.com/oncegate/oncegate/manager/internal/schedules"
	"github.com/oncegate/oncegate/manager/internal/shard"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/downtime"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/sealed"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// recordCheck follows the records of a log to what a manager would find at the end
// of it, and remembers those that it could not read.
type recordCheck struct {
	ring *crypt.Keyring
	// sealed counts values that were not looked into for want of a key.
	sealed int
	// bad are unreadable, odd are not what a manager would have written.
	bad, odd map[store.ID]string
	// blobs are the sizes of the values that jobs keep apart, needs what jobs say of
	// theirs.
	blobs map[string]int
	needs map[string]map[string]int
}

func newRecordCheck(ring *crypt.Keyring) *recordCheck {
	return &recordCheck{
		ring: ring,
		bad:  make(map[store.ID]string), odd: make(map[store.ID]string),
		blobs: make(map[string]int), needs: make(map[string]map[string]int),
	}
}

// entry fits wal.InspectOptions.Check. Its error says that the engine itself could
// not use the record, and a manager would not start.
func (c *recordCheck) entry(e wal.Entry) error {
	_, err := mem.DecodeWriteSet(e.Body, func(ch *mem.Change) error {
		if !e.Replaced {
			c.change(ch)
		}
		return nil
	})
	return err
}

// unreadable fits mem.InspectOptions.Unreadable.
func (c *recordCheck) unreadable(u *store.UnreadableError) {
	c.bad[store.ID{Collection: u.Collection, Key: u.Key}] = u.Reason
}

func (c *recordCheck) change(ch *mem.Change) {
	id := store.ID{Collection: store.Collection(ch.Collection), Key: string(ch.Key)}
	delete(c.bad, id)
	delete(c.odd, id)
	switch id.Collection {
	case jobs.BlobCollection:
		delete(c.blobs, id.Key)
		if !ch.Delete {
			c.blobs[id.Key] = crypt.SizeOf(ch.Value)
		}
	case jobs.Collection:
		delete(c.needs, id.Key)
	}
	if ch.Delete {
		return
	}
	value, err := ch.Value, error(nil)
	if mayBeSealed(id.Collection) && crypt.IsSealed(value) {
		if c.ring == nil {
			c.sealed++
			return
		}
		value, err = sealed.OpenValue(c.ring, id.Collection, id.Key, value)
	}
	var entries []store.Entry
	switch {
	case err != nil:
	case id.Collection == ledger.Collection:
		var r ledger.StoredRecord
		r, err = ledger.ReadRecord(id.Key, value)
		entries = r.Entries
	case id.Collection == ledger.ConflictCollection:
		entries, err = ledger.ReadConflict(id.Key, value)
	case id.Collection == window.Collection:
		err = window.Check(id.Key, value)
	case jobs.Owns(id.Collection):
		var r jobs.StoredRecord
		r, err = jobs.ReadRecord(id.Collection, id.Key, value)
		entries = r.Entries
		if len(r.Blobs) > 0 {
			c.needs[id.Key] = r.Blobs
		}
	case id.Collection == schedules.Collection:
		entries, err = schedules.ReadRecord(id.Key, value)
	case storelogs.Owns(id.Collection):
		if err = storelogs.CheckRecord(id.Collection, id.Key, value); err == nil {
			return // values do not have all that the entries show
		}
	case id.Collection == sealed.Collection:
		err = sealed.CheckRecord(id.Key, value)
	case id.Collection == shard.Collection:
		_, err = shard.Read(id.Key, ch.Value)
	case feed.Owns(id.Collection), peers.Owns(id.Collection), id.Collection == downtime.Collection, // made again when it cannot be read
		id.Collection == mem.LostCollection: // read by the state
		return
	default:
		c.odd[id] = "this program does not know its collection"
		return
	}
	var u *store.UnreadableError
	if errors.As(err, &u) {
		c.bad[id] = u.Reason
		return
	}
	if id.Collection == jobs.BlobCollection && crypt.IsSealed(ch.Value) {
		key, _ := crypt.KeyOf(ch.Value)
		entries = []store.Entry{{Index: sealed.KeyIndex, SortKey: key}}
	}
	same := len(entries) == len(ch.Entries)
	for _, e := range ch.Entries {
		same = same && slices.Contains(entries, store.Entry{Index: string(e.Index), SortKey: string(e.SortKey)})
	}
	if !same {
		c.odd[id] = "its index entries are not those of its value; a manager may not find it"
	}
}

// mayBeSealed reports whether values of a collection may be encrypted. Others may begin like an encrypted one.
func mayBeSealed(c store.Collection) bool {
	return !storelogs.Owns(c) || c == storelogs.EntryCollection
}

// found returns a line for each record with something wrong, and how many of them
// cannot be read.
func (c *recordCheck) found() (lines []string, unreadable int) {
	for job, blobs := range c.needs {
		for key, size := range blobs {
			if have, ok := c.blobs[key]; !ok || have != size {
				c.bad[store.ID{Collection: jobs.Collection, Key: job}] = fmt.Sprintf("its value %s has %d bytes instead of %d", key, have, size)
			}
		}
	}
	for id, reason := range c.bad {
		lines = append(lines, fmt.Sprintf("unreadable: %s %+q: %s", id.Collection, id.Key, reason))
	}
	for id, reason := range c.odd {
		lines = append(lines, fmt.Sprintf("note: %s %+q: %s", id.Collection, id.Key, reason))
	}
	slices.SortFunc(lines, strings.Compare)
	return lines, len(c.bad)
}
