package etcd

import (
	"errors"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/oncegate/oncegate/manager/internal/store"
)

const (
	// maxRecent bounds the new records that are remembered, and recentBytes each of them.
	maxRecent   = 16 << 10
	recentBytes = 1 << 10
	// cautious is how many transactions read after a guess that was wrong. So where half of the keys are not new, one
	// transaction in ten sends a commit that is refused.
	cautious = 8
)

// errGuessed makes the function run again with the records themselves.
var errGuessed = errors.New("etcd store: a guess was wrong or shows in the answer")

// recent remembers the new records that this process wrote last, as etcd has them unless somebody changed them. A record
// that is reserved here is mostly committed here.
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

// add remembers records of a commit.
func (r *recent) add(written []*mvccpb.KeyValue, revision int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.records == nil && len(written) > 0 {
		r.records, r.order = make(map[string]*mvccpb.KeyValue), make([]string, maxRecent)
	}
	for _, kv := range written {
		kv.ModRevision = revision
		key := string(kv.Key)
		delete(r.records, r.order[r.next])
		r.records[key], r.order[r.next] = kv, key
		r.next = (r.next + 1) % maxRecent
	}
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

// Guess implements store.Guesser. The commit compares the revisions of these records like those of all others.
func (t *tx) Guess(ids []store.ID) error {
	t.remember = true
	if t.run > 0 || t.ReadOnly || t.Err != nil || !t.s.recent.trusted() {
		return t.FetchAll(ids)
	}
	records, err := t.Unread(ids)
	if err != nil {
		return err
	}
	for _, r := range records {
		if kv := t.s.recent.take(t.s.recordKey(r.Collection, r.Key)); kv != nil {
			if err := t.fill(r, kv); err != nil {
				return t.Fail(err)
			}
		}
		t.Preload(r)
		t.guessed = true
	}
	return nil
}

// guess returns errGuessed instead of an answer that may come from a guess: what a run found without writing anything, or
// an error. Only a commit proves a guess right.
func (t *tx) guess(err error) error {
	if !t.guessed || errors.Is(err, store.ErrUnavailable) || err == nil && len(t.Writes()) > 0 {
		return err
	}
	return errGuessed
}

// inserted are the small records that the commit inserts, to be remembered.
func (t *tx) inserted(changes []change) (kvs []*mvccpb.KeyValue) {
	if !t.remember {
		return nil
	}
	for _, c := range changes {
		if r := c.r; r.Present && !r.Stored && c.parts == "" && len(c.encoded) <= recentBytes {
			kvs = append(kvs, &mvccpb.KeyValue{Key: []byte(t.s.recordKey(r.Collection, r.Key)), Value: c.encoded})
		}
	}
	return kvs
}
