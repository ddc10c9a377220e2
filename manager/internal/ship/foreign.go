package ship

import (
	"context"
	"errors"
	"fmt"

	"github.com/oncegate/oncegate/manager/internal/object"
)

// ForeignError says that a destination has the copies of another ledger. Nothing is shipped there, because a restore takes
// the newest state of any ledger.
type ForeignError struct {
	// Theirs and Mine are ids of ledgers.
	Theirs, Mine string
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("the prefix has the copies of the ledger %s, and this is the ledger %s: each ledger needs its own prefix", e.Theirs, e.Mine)
}

// ours returns a *ForeignError for the id of another ledger.
func (o *Options) ours(ledger string) error {
	if o.ledger.ID == "" || ledger == "" || ledger == o.ledger.ID {
		return nil
	}
	return &ForeignError{ledger, o.ledger.ID}
}

// LedgerOf returns the id of the ledger whose copies a destination has; ErrNothing when it has none. ctx bounds it.
func LedgerOf(ctx context.Context, s object.Store) (id string, err error) {
	s = &retrying{Store: s, tries: tries, timeout: tryTimeout}
	m, _, err := readManifest(ctx, s)
	if err == nil {
		return m.Ledger, nil
	}
	if !errors.Is(err, object.ErrNotFound) {
		return "", err
	}
	b, _, err := s.Get(ctx, leaseObject)
	if errors.Is(err, object.ErrNotFound) {
		return "", ErrNothing
	}
	if err != nil {
		return "", err
	}
	l, err := decodeLease(b)
	return l.Ledger, err
}
