package sealed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/oncegate/oncegate/manager/internal/crypt"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Collection has the record that lists the keys in use.
const Collection store.Collection = "encryption"

const (
	recordKey     = "keys"
	recordVersion = 1
	// checkText is what every key of the record seals.
	checkText = "oncegate"
)

// Place is a collection whose values are sealed.
type Place struct {
	Collection store.Collection
	// Indexes have each record with index entries once.
	Indexes []string
	// Unindexed says that the records have no index entries of their own. The store then adds one in KeyIndex, so that
	// it finds the records of a key.
	Unindexed bool
	// Describe returns the index entries of the record that hit leads to, and which records of collections that are
	// Unindexed belong to it. plain is its value. It is not called for collections that are Unindexed.
	Describe func(hit store.Hit, plain []byte) (entries []store.Entry, more []store.ID, err error)
}

// KeyIndex has the sealed records of collections that are Unindexed, by the id of their key.
const KeyIndex = "sealed"

// entries returns the index entries of a record, if it is sealed under the key id.
func (p *Place) entries(hit store.Hit, plain []byte, id string) (entries []store.Entry, err error) {
	if p.Unindexed {
		return []store.Entry{{Index: KeyIndex, SortKey: id}}, nil
	}
	entries, _, err = p.Describe(hit, plain)
	return entries, err
}

// Options of Open.
type Options struct {
	// Ring has the keys; nil for a manager without.
	Ring *crypt.Keyring
	// Places are the collections to seal.
	Places []Place
	// DecryptOnly leaves what is put in plain. The managers of a shared engine begin so, until all of them have the keys.
	DecryptOnly bool
	// Lacks, when set, is called with the id of each key with which other managers encrypt and that Ring does not have. It may
	// be called in a transaction's function.
	Lacks func(id string)
}

// Error says that the keys do not fit the store. It names ids of keys, never keys.
type Error struct{ msg string }

func (e *Error) Error() string { return e.msg }

func refuse(format string, args ...any) error { return &Error{fmt.Sprintf(format, args...)} }

// record lists the keys in use.
type record struct {
	Version int `json:"version"`
	// Current is the id of the key that the manager which started last encrypts with.
	Current string `json:"current"`
	// Keys are sealed check texts by the ids of the keys that values may be sealed under.
	Keys map[string][]byte `json:"keys"`
	// Plain says that there may be values which are not sealed.
	Plain bool `json:"plain,omitempty"`
}

// CheckRecord reads a record of Collection for a tool. Its error is a *store.UnreadableError.
func CheckRecord(key string, value []byte) error {
	_, err := parseRecord(key, value)
	return err
}

func parseRecord(key string, value []byte) (*record, error) {
	r := new(record)
	err := json.Unmarshal(value, r)
	switch {
	case err == nil && key != recordKey:
		err = errors.New("it is not known")
	case err == nil && r.Version != recordVersion:
		err = fmt.Errorf("it has version %d, this program reads %d", r.Version, recordVersion)
	case err == nil && r.Keys[r.Current] == nil:
		err = errors.New("it lacks the key that encrypts")
	}
	if err != nil {
		return nil, &store.UnreadableError{Collection: Collection, Key: key, Reason: err.Error()}
	}
	return r, nil
}

// get reads the record; nil when there is none.
func get(tx store.Tx) (*record, error) {
	return store.Read(tx, Collection, recordKey, parseRecord)
}

func (r *record) put(tx store.Tx) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return tx.Put(Collection, recordKey, b)
}

func checkName(id string) string { return recordKey + "/" + id }

// lists reports whether the record lists what this manager puts values under.
func (s *Store) lists(r *record) bool {
	if s.opts.DecryptOnly {
		return r.Plain
	}
	return r.Keys[s.opts.Ring.Current()] != nil
}

// list adds what this manager puts values under. It reports whether that changed anything.
func (s *Store) list(r *record) bool {
	if s.lists(r) {
		return false
	}
	if s.opts.DecryptOnly {
		r.Plain = true
	} else {
		id := s.opts.Ring.Current()
		r.Keys[id] = s.opts.Ring.Seal(nil, string(Collection), checkName(id), []byte(checkText))
	}
	return true
}

// see remembers which keys values may be under. Until a pass has settled that, those are all that another manager may have
// used: it may have put values after the pass that made the record forget its key, and ended before it listed that again.
func (s *Store) see(r *record) {
	ids := r.ids()
	for id := range r.Keys {
		if !s.has(id) {
			s.lack(id)
		}
	}
	if !s.settled.Load() && s.opts.Ring != nil {
		ids = append(append(ids, ""), s.opts.Ring.IDs()...)
		slices.Sort(ids)
		ids = slices.Compact(ids)
	}
	s.listed.Store(&ids)
}

// check returns an *Error unless ring has all keys of the record.
func (r *record) check(ring *crypt.Keyring) error {
	for _, id := range slices.Sorted(maps.Keys(r.Keys)) {
		if ring == nil {
			return refuse("the store has values that are encrypted under the key %q; must be given to open it", id)
		}
		plain, err := ring.Open(string(Collection), checkName(id), r.Keys[id])
		var missing *crypt.NoKeyError
		switch {
		case errors.As(err, &missing):
			return refuse("lacks the key %q, under which the store may have values; a key may leave the file once oncegate_encryption_key_in_use has it no more", id)
		case err != nil || string(plain) != checkText:
			return refuse("its key %q is not the one with which the store's values are encrypted", id)
		}
	}
	return nil
}

// ids are the keys in use, "" for plain values.
func (r *record) ids() []string {
	ids := slices.Sorted(maps.Keys(r.Keys))
	if r.Plain {
		ids = append([]string{""}, ids...)
	}
	return ids
}

// Open checks that the keys fit the store and returns a store that seals. Without keys it refuses a store that has sealed
// values. It then returns st, or, where managers share the engine, a store that only recognizes sealed values of others among
// plain ones. Where it only decrypts, it makes no record: managers without keys may still start. Its error is an *Error
// for keys that do not fit, else the store's.
func Open(ctx context.Context, st store.Store, opts Options) (store.Store, *Store, error) {
	if opts.Ring == nil {
		err := st.View(ctx, func(tx store.Tx) error {
			r, err := get(tx)
			if err != nil || r == nil {
				return err
			}
			return r.check(nil)
		})
		if !st.Capabilities().Shared {
			return st, nil, err
		}
		opts.DecryptOnly = true
		s := newStore(st, opts)
		s.listed.Store(new([]string))
		return s, s, err
	}
	s := newStore(st, opts)
	return s, s, st.Update(ctx, func(tx store.Tx) error {
		r, err := get(tx)
		if err != nil {
			return err
		}
		if r == nil && opts.DecryptOnly {
			s.see(new(record))
			return nil
		}
		if r == nil {
			r = &record{Version: recordVersion, Keys: make(map[string][]byte), Plain: true} // Run finds out
		}
		if err := r.check(opts.Ring); err != nil {
			return err
		}
		changed := s.list(r)
		if current := opts.Ring.Current(); !opts.DecryptOnly && r.Current != current {
			r.Current, changed = current, true
		}
		s.see(r)
		if !changed {
			return nil
		}
		return r.put(tx)
	})
}
