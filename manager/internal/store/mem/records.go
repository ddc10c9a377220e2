package mem

import (
	"hash/maphash"
	"iter"
)

// records finds records by key. It is a map from a hash of the key. Compared with a map from the key it takes a third
// less memory, grows without reading all keys again, and gives the garbage collector half the pointers to follow. The
// few keys whose hash is already in use are kept in collided.
type records struct {
	hash     func(string) uint64
	byHash   map[uint64]*record
	collided map[string]*record
	bytes    int64 // of the memory of all records, see record.memory
}

func newRecords() records {
	seed := maphash.MakeSeed()
	return records{
		hash:   func(key string) uint64 { return maphash.String(seed, key) },
		byHash: make(map[uint64]*record),
	}
}

func (r *records) len() int { return len(r.byHash) + len(r.collided) }

func (r *records) get(key string) *record {
	if rec := r.byHash[r.hash(key)]; rec != nil && rec.key() == key {
		return rec
	}
	if len(r.collided) > 0 {
		return r.collided[key]
	}
	return nil
}

// put stores rec and returns the version that it replaces. A key in collided stays there until it is deleted, even when its
// hash becomes free.
func (r *records) put(rec *record) (old *record) {
	key := rec.key()
	h := r.hash(key)
	old = r.byHash[h]
	if collided := r.collided[key]; collided != nil || old != nil && old.key() != key {
		old = collided
		if r.collided == nil {
			r.collided = make(map[string]*record)
		}
		// Delete first: a map keeps the old key, and the old key keeps the memory of the old version.
		delete(r.collided, key)
		r.collided[key] = rec
	} else {
		r.byHash[h] = rec
	}
	r.bytes += rec.memory()
	if old != nil {
		r.bytes -= old.memory()
	}
	return old
}

func (r *records) delete(key string) (old *record) {
	h := r.hash(key)
	if old = r.byHash[h]; old != nil && old.key() == key {
		delete(r.byHash, h)
	} else {
		old = r.collided[key]
		delete(r.collided, key)
	}
	if old != nil {
		r.bytes -= old.memory()
	}
	return old
}

// all has every record. Records may be put and deleted meanwhile; it has every record that stays there throughout.
func (r *records) all() iter.Seq[*record] {
	return func(yield func(*record) bool) {
		for _, rec := range r.byHash {
			if !yield(rec) {
				return
			}
		}
		for _, rec := range r.collided {
			if !yield(rec) {
				return
			}
		}
	}
}
