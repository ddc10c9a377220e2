package feed

import (
	"context"
	"errors"

	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// importBatch and importBytes bound what one transaction imports.
const (
	importBatch = 64
	importBytes = 1 << 20
)

// Import records outcomes of other origins, each as ledger.Tx.Import does. also, which may be nil, runs in the transaction
// of the last changes, for example to keep the cursor after them; done is what the call has done by then.
//
// Errors: the store's. Changes may then be imported or not; importing them again settles it.
func (f *Feed) Import(ctx context.Context, changes []ledger.FeedChange, also func(tx store.Tx, done ledger.Imported) error) (ledger.Imported, error) {
	return f.importAll(ctx, changes, importing{also: also})
}

// Recover records outcomes of the ledger's own origin that it has forgotten and that others hold. It changes only
// what Import changes.
//
// Errors: as for Import.
func (f *Feed) Recover(ctx context.Context, changes []ledger.FeedChange) (ledger.Imported, error) {
	return f.importAll(ctx, changes, importing{own: true})
}

// Settle imports changes that their origin was asked for after the notes had been met. An outcome that the home of a
// note still has at that time ends the note.
//
// Errors: as for Import.
func (f *Feed) Settle(ctx context.Context, notes []ledger.Note, changes []ledger.FeedChange) (ledger.Imported, error) {
	return f.importAll(ctx, changes, importing{notes: notes})
}

// importing is what an import is about.
type importing struct {
	own   bool // outcomes that the ledger forgot
	notes []ledger.Note
	also  func(store.Tx, ledger.Imported) error
}

func (f *Feed) importAll(ctx context.Context, changes []ledger.FeedChange, about importing) (done ledger.Imported, err error) {
	for last := false; !last; {
		n, size := 0, 0
		for n < len(changes) && n < importBatch && (n == 0 || size+len(changes[n].Result) <= importBytes) {
			size += len(changes[n].Result)
			n++
		}
		last = n == len(changes)
		if err := f.importSome(ctx, changes[:n], about, last, &done); err != nil {
			return done, err
		}
		changes = changes[n:]
	}
	return done, nil
}

// importSome imports changes in one transaction or, if they do not fit into one, in several.
func (f *Feed) importSome(ctx context.Context, changes []ledger.FeedChange, about importing, last bool, done *ledger.Imported) error {
	opCtx, cancel := context.WithTimeout(ctx, f.ledger.Options().OpTimeout)
	var sum ledger.Imported // with the transaction's last run
	err := f.ledger.Update(opCtx, func(tx *ledger.Tx) error {
		sum = *done
		for i := range changes {
			one, err := tx.Import(&changes[i], about.own, about.notes)
			if err != nil {
				return err
			}
			sum.Add(one)
		}
		if !last || about.also == nil {
			return nil
		}
		return about.also(tx, sum)
	})
	cancel()
	if half := len(changes) / 2; half > 0 && (errors.Is(err, store.ErrTooLarge) || errors.Is(err, store.ErrConflict)) {
		if err := f.importSome(ctx, changes[:half], about, false, done); err != nil {
			return err
		}
		return f.importSome(ctx, changes[half:], about, last, done)
	}
	if err == nil {
		*done = sum
	}
	return err
}
