package etcd

import (
	"errors"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/oncegate/oncegate/manager/internal/store"
)

const (
	// maxRecent bounds the records that are remembered, and recentBytes each of them.
	maxRecent   = 16 << 10
	recentBytes = 1 << 10
	// cautious is how many transactions read after a guess that was wrong. So where half of the keys are not new, one
	// transaction in ten sends a commit that is refused.
	cautious = 8
)

// errGuessed makes the function run again with the records themselves.
var errGuessed = errors.New("etcd store: a guess was wrong or shows in the answer")

// recent remembers records that this process wrote last or read ahead. They are current unless another process changed them. A
// record that is reserved here is mostly committed here, and a job that is claimed here is mostly finished here.
type recent struct {
	mu      sync.Mutex
	records map[string]*mvccpb.KeyValue // by key
	order   []string                    // a ring of their keys, and of keys that were taken
	next    int
	wary    int // transactions that are to read
}

// take removes what is remembered of a key: the caller is about to change it.
func (r *recent) take(key string) *mvccpb.KeyValue {
	r.mu.Lock()
	defer r.mu.Unlock()
	kv := r.records[key]
	delete(r.records, key)
	return kv
}

// wrote is a record of a commit.
type wrote struct {
	key string
	kv  *mvccpb.KeyValue // nil if it is not to be remembered
	// again: it is remembered only if it was remembered before.
	again bool
}

// add takes the records of a commit.
func (r *recent) add(written []wrote, revision int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range written {
		had := r.records[w.key] != nil
		delete(r.records, w.key)
		if w.kv == nil || w.again && !had {
			continue
		}
		w.kv.ModRevision = revision
		r.set(w.key, w.kv)
	}
}

// put remembers a record as it was read, unless it is large. It reports whether the record is remembered.
func (r *recent) put(kv *mvccpb.KeyValue) bool {
	if len(kv.Value) > recentBytes || inParts(kv.Value) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key := string(kv.Key)
	if have := r.records[key]; have == nil || have.ModRevision < kv.ModRevision { // else this process has written it since
		r.set(key, kv)
	}
	return true
}

// set remembers a record. The caller holds the lock.
func (r *recent) set(key string, kv *mvccpb.KeyValue) {
	if r.records == nil {
		r.records, r.order = make(map[string]*mvccpb.KeyValue), make([]string, maxRecent)
	}
	delete(r.records, r.order[r.next])
	r.records[key], r.order[r.next] = kv, key
	r.next = (r.next + 1) % maxRecent
}

// trusted reports whether a transaction may guess.
func (r *recent) trusted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wary > 0 {
		r.wary--
		return false
	}
	return true
}

func (r *recent) wrong() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wary = cautious
}

// Prefetch implements store.Tx.
func (t *tx) Prefetch(ids []store.ID) error { return t.prefetch(ids, false) }

// PrefetchNew implements store.Tx.
func (t *tx) PrefetchNew(ids []store.ID) error {
	t.remember = true
	return t.prefetch(ids, true)
}

// prefetch takes records as they are remembered. The others are taken for absent, or read. The commit compares the
// revisions of these records like those of all others.
func (t *tx) prefetch(ids []store.ID, absent bool) error {
	if len(ids) == 0 || t.run > 0 || t.ReadOnly || t.Err != nil || !t.s.recent.trusted() {
		return t.Tx.Prefetch(ids)
	}
	records, err := t.Unread(ids)
	if err != nil {
		return err
	}
	var others []store.ID
	for _, r := range records {
		if kv := t.s.recent.take(t.s.recordKey(r.Collection, r.Key)); kv != nil {
			if err := t.fill(r, kv); err != nil {
				return t.Fail(err)
			}
		} else if !absent {
			others = append(others, store.ID{Collection: r.Collection, Key: r.Key})
			continue
		}
		t.Preload(r)
		t.guessed = true
	}
	return t.Tx.Prefetch(others)
}

// guess returns errGuessed instead of an answer that may come from a guess: what a run found without writing anything, or
// an error. Only a commit proves a guess right.
func (t *tx) guess(err error) error {
	if !t.guessed || errors.Is(err, store.ErrUnavailable) || err == nil && len(t.Writes()) > 0 {
		return err
	}
	return errGuessed
}

// wrote returns the records of a commit. Those are remembered that are likely to be changed here next: what the
// transaction inserted after PrefetchNew or claimed, and what was remembered before, such as a reservation that it extended.
func (t *tx) wrote(changes []change) []wrote {
	out := make([]wrote, len(changes))
	for i, c := range changes {
		w := wrote{key: t.s.recordKey(c.r.Collection, c.r.Key)}
		keep := t.remember && !c.r.Stored || t.claimed.Has(c.r.Collection, c.r.Key)
		w.again = !keep
		if c.r.Present && c.parts == "" && len(c.encoded) <= recentBytes && (keep || !t.guessed) {
			w.kv = &mvccpb.KeyValue{Key: []byte(w.key), Value: c.encoded}
		}
		out[i] = w
	}
	return out
}
