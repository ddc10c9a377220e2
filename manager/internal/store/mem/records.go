package mem

import "hash/maphash"

// records finds records by key. It is a map from a hash of the key, which
// takes a third less memory than one from the key, grows without reading all
// keys again, and gives the garbage collector half the pointers to follow.
// The few keys whose hash another key has already are kept aside.
type records struct {
	hash   func(string) uint64
	byHash map[uint64]*record
	aside  map[string]*record
	bytes  int64 // of all keys and values
}

func newRecords() records {
	seed := maphash.MakeSeed()
	return records{
		hash:   func(key string) uint64 { return maphash.String(seed, key) },
		byHash: make(map[uint64]*record),
	}
}

func (r *records) len() int { return len(r.byHash) + len(r.aside) }

func (r *records) get(key string) *record {
	if rec := r.byHash[r.hash(key)]; rec != nil && rec.key() == key {
		return rec
	}
	if len(r.aside) > 0 {
		return r.aside[key]
	}
	return nil
}

// put stores rec and returns the version that it replaces.
func (r *records) put(rec *record) (old *record) {
	old = r.replace(rec)
	r.bytes += rec.size()
	if old != nil {
		r.bytes -= old.size()
	}
	return old
}

// replace is put without the account of bytes. A key that is kept aside stays
// there until it is deleted, even when its hash becomes free.
func (r *records) replace(rec *record) (old *record) {
	key := rec.key()
	if len(r.aside) > 0 {
		if old := r.aside[key]; old != nil {
			r.setAside(key, rec)
			return old
		}
	}
	h := r.hash(key)
	old = r.byHash[h]
	if old != nil && old.key() != key {
		r.setAside(key, rec)
		return nil
	}
	r.byHash[h] = rec
	return old
}

// setAside deletes first: a map keeps the key it was given at first, and with
// it the memory of the version that the key is a piece of.
func (r *records) setAside(key string, rec *record) {
	if r.aside == nil {
		r.aside = make(map[string]*record)
	}
	delete(r.aside, key)
	r.aside[key] = rec
}

func (r *records) delete(key string) (old *record) {
	if old = r.remove(key); old != nil {
		r.bytes -= old.size()
	}
	return old
}

func (r *records) remove(key string) (old *record) {
	h := r.hash(key)
	if old = r.byHash[h]; old != nil && old.key() == key {
		delete(r.byHash, h)
		return old
	}
	old = r.aside[key]
	delete(r.aside, key)
	return old
}

// each calls fn for every record until it returns false. Records may be put
// and deleted between its calls: those that were there all the time are met.
func (r *records) each(fn func(*record) bool) {
	for _, rec := range r.byHash {
		if !fn(rec) {
			return
		}
	}
	for _, rec := range r.aside {
		if !fn(rec) {
			return
		}
	}
}
