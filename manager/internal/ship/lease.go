package ship

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
)

const leaseObject = "lease"

// leaseRecord is the lease of a destination. Terms grow by one with each holder.
type leaseRecord struct {
	Term uint64 `json:"term"`
	// Holder is the data directory's, Writer the process's, Host is for people.
	Holder string `json:"holder"`
	Writer string `json:"writer"`
	Host   string `json:"host"`
	// Ledger is the id of the ledger whose copies the destination has.
	Ledger string `json:"ledger,omitempty"`
	// Renewals grows, so a watcher sees that the holder is alive.
	Renewals uint64 `json:"renewals"`
	TTL      int64  `json:"ttl_ms"`
	Released bool   `json:"released,omitempty"`
}

// lease is the right to ship to a destination. It is taken over when it was released, when
// the same data directory held it, or when its holder did not renew it for its TTL as
// measured by the clock of the manager that watches: no clocks of two machines are compared. It is
// used by one goroutine.
type lease struct {
	store  object.Store
	holder string
	writer string
	host   string
	ledger string // "" is any
	ttl    time.Duration

	record  leaseRecord
	version object.Version

	// The version that is watched while another manager holds the lease, and since when.
	seen  object.Version
	since time.Time
	first bool // nothing was tried yet: the same data directory may take over immediately
}

// heldError says that another manager holds the lease.
type heldError struct{ by leaseRecord }

func (e *heldError) Error() string {
	return fmt.Sprintf("the lease is held by another manager on %s, term %d", e.by.Host, e.by.Term)
}

// errNoConditions says that the store cannot keep two managers apart, since it ignores a condition.
func errNoConditions(header string) error {
	return fmt.Errorf("ship: the store ignores %s: it cannot keep two managers apart", header)
}

// noVersion is a version that no object has.
const noVersion object.Version = "00000000000000000000000000000000"

// acquire tries once to take the lease. The error is a *heldError when another manager holds it.
func (l *lease) acquire(ctx context.Context) error {
	mine := leaseRecord{Term: 1, Holder: l.holder, Writer: l.writer, Host: l.host, Ledger: l.ledger, TTL: l.ttl.Milliseconds()}
	b, v, err := l.store.Get(ctx, leaseObject)
	var old leaseRecord
	known := false // the lease shows the highest term that was used
	switch {
	case errors.Is(err, object.ErrNotFound): // it was never held, or it was lost
	case err != nil:
		return err
	default:
		if old, err = decodeLease(b); err != nil {
			// A holder cannot renew it by this version, or renews it and so mends it.
			if !l.expired(v, leaseRecord{TTL: l.ttl.Milliseconds()}) {
				l.first = false
				return err
			}
			break
		}
		if l.ledger != "" && old.Ledger != "" && old.Ledger != l.ledger {
			l.first = false
			return &ForeignError{old.Ledger, l.ledger}
		}
		restarted := l.first && old.Holder == l.holder
		own := old.Writer == l.writer // the answer to a try was lost, or something in the destination has a later term
		if !old.Released && !restarted && !own && !l.expired(v, old) {
			l.first = false
			return &heldError{old}
		}
		mine.Term, known = old.Term+1, !own
	}
	if !known {
		used, err := l.usedTerm(ctx)
		if err != nil {
			return err
		}
		mine.Term = max(mine.Term, used+1)
	}
	v, err = swap(ctx, l.store, leaseObject, encodeLease(mine), v, l.judge(mine, old))
	if errors.Is(err, errFenced) {
		l.seen, l.first = "", false
		return &heldError{l.now(ctx, old)}
	}
	if err != nil {
		return err
	}
	if _, err := l.store.Create(ctx, leaseObject, encodeLease(mine)); err == nil {
		return errNoConditions("If-None-Match")
	} else if !errors.Is(err, object.ErrExists) {
		return err
	}
	if _, err := l.store.Replace(ctx, leaseObject, encodeLease(mine), noVersion); err == nil {
		return errNoConditions("If-Match")
	} else if !errors.Is(err, object.ErrChanged) {
		return err
	}
	l.record, l.version, l.first, l.seen = mine, v, false, ""
	return nil
}

// now is the lease as the destination has it, or old where that cannot be read.
func (l *lease) now(ctx context.Context, old leaseRecord) leaseRecord {
	if b, _, err := l.store.Get(ctx, leaseObject); err == nil {
		if now, err := decodeLease(b); err == nil {
			return now
		}
	}
	return old
}

// usedTerm is the highest term that this process or the destination shows, for a lease that does not show it. If a stale
// listing hides a term, its head or an object whose name is taken fences the manager.
func (l *lease) usedTerm(ctx context.Context) (uint64, error) {
	used := l.record.Term
	if m, _, err := readManifest(ctx, l.store); err == nil {
		used = max(used, m.Term)
	} else if !lost(err) {
		return 0, err
	}
	err := object.All(ctx, l.store, logPrefix+"/", func(o object.Info) error {
		if term, ok := termOf(strings.TrimPrefix(o.Name, logPrefix+"/")); ok {
			used = max(used, term)
		}
		return nil
	})
	return used, err
}

// lost reports whether an object is missing or damaged.
func lost(err error) bool {
	return errors.Is(err, object.ErrNotFound) || isDamage(err)
}

// holdsLease returns errFenced when this process does not hold the lease in that term. If it does, no later holder wrote
// what this process read before.
func (o *Options) holdsLease(ctx context.Context, term uint64) error {
	b, _, err := o.Store.Get(ctx, leaseObject)
	var now leaseRecord
	if err == nil {
		now, err = decodeLease(b)
	}
	if err != nil && !lost(err) {
		return err
	}
	if err != nil || now.Writer != o.writer || now.Term != term {
		return fmt.Errorf("%w: %s is held by another manager", errFenced, leaseObject)
	}
	return nil
}

// expired reports whether the lease was seen unchanged for its TTL.
func (l *lease) expired(v object.Version, old leaseRecord) bool {
	if v != l.seen {
		l.seen, l.since = v, time.Now()
	}
	return time.Since(l.since) > time.Duration(old.TTL)*time.Millisecond
}

// renew renews the lease, or gives it up. The error is errFenced when this process no longer holds it.
func (l *lease) renew(ctx context.Context, release bool) error {
	next := l.record
	next.Renewals++
	next.Released = release
	v, err := swap(ctx, l.store, leaseObject, encodeLease(next), l.version, l.judge(next, l.record))
	if err == nil {
		l.record, l.version = next, v
	}
	return err
}

// judge returns the look of a swap of old by next.
func (l *lease) judge(next, old leaseRecord) func([]byte) verdict {
	return func(now []byte) verdict {
		var found leaseRecord
		if json.Unmarshal(now, &found) != nil {
			return foreign
		}
		switch {
		case found == next:
			return own
		case found == old:
			return unchanged
		case found.Writer == next.Writer && found.Term == next.Term && found.Renewals <= next.Renewals:
			return unchanged // a renewal whose answer was lost
		}
		return foreign
	}
}

// decodeLease returns a *DamageError when b is not a lease.
func decodeLease(b []byte) (r leaseRecord, err error) {
	if err = json.Unmarshal(b, &r); err == nil && (r.Term == 0 || r.Writer == "") {
		err = errors.New("it has no term, or no writer")
	}
	if err != nil {
		return leaseRecord{}, &DamageError{Object: leaseObject, Reason: err.Error()}
	}
	return r, nil
}

func encodeLease(r leaseRecord) []byte {
	b, err := json.Marshal(r)
	if err != nil {
		panic(err) // it has nothing that could fail
	}
	return append(b, '\n')
}
