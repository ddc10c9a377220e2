package app

import (
	"context"
	"errors"
	"slices"

	"github.com/oncegate/oncegate/manager/internal/crypt"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/logs/storelogs"
	"github.com/oncegate/oncegate/manager/internal/schedules"
	"github.com/oncegate/oncegate/manager/internal/scrape"
	"github.com/oncegate/oncegate/manager/internal/settings"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/sealed"
)

// sealedPlaces are the collections with values that callers sent or got.
func sealedPlaces() []sealed.Place {
	places := []sealed.Place{
		{
			Collection: ledger.Collection,
			Describe: func(hit store.Hit, plain []byte) ([]store.Entry, []store.ID, error) {
				r, err := ledger.ReadRecord(hit.Key, plain)
				return r.Entries, nil, err
			},
		},
		{
			Collection: ledger.ConflictCollection,
			Indexes:    []string{ledger.ConflictIndex},
			Describe: func(hit store.Hit, plain []byte) ([]store.Entry, []store.ID, error) {
				entries, err := ledger.ReadConflict(hit.Key, plain)
				return entries, nil, err
			},
		},
		{
			Collection: jobs.Collection,
			Describe: func(hit store.Hit, plain []byte) (entries []store.Entry, blobs []store.ID, err error) {
				r, err := jobs.ReadRecord(jobs.Collection, hit.Key, plain)
				for key := range r.Blobs {
					blobs = append(blobs, store.ID{Collection: jobs.BlobCollection, Key: key})
				}
				return r.Entries, blobs, err
			},
		},
		{Collection: jobs.BlobCollection, Unindexed: true},
		{
			Collection: schedules.Collection,
			Describe: func(hit store.Hit, plain []byte) ([]store.Entry, []store.ID, error) {
				entries, err := schedules.ReadRecord(hit.Key, plain)
				return entries, nil, err
			},
		},
		{
			Collection: storelogs.EntryCollection,
			Indexes:    []string{storelogs.EntryIndex},
			Describe: func(hit store.Hit, _ []byte) ([]store.Entry, []store.ID, error) {
				return []store.Entry{{Index: storelogs.EntryIndex, SortKey: hit.SortKey}}, nil, nil
			},
		},
	}
	for _, p := range slices.Concat(ledger.Places(), jobs.Places(), schedules.Places()) {
		for i := range places {
			if places[i].Collection == p.Collection {
				places[i].Indexes = append(places[i].Indexes, p.Index)
			}
		}
	}
	return places
}

// openEncryption reads the keys and checks them against the store, before anything else reads it.
func (a *app) openEncryption(ctx context.Context) error {
	var err error
	file := a.settings.EncryptionKeyFile
	if file != "" {
		if a.ring, err = crypt.Load(file); err != nil {
			return settings.Usagef("--encryption-key-file %q: %v", file, err)
		}
	}
	opened, seals, err := sealed.Open(ctx, a.store, sealed.Options{Ring: a.ring, Places: sealedPlaces(), DecryptOnly: a.settings.DecryptOnly,
		Lacks: func(id string) {
			a.log.Error("other managers encrypt this store under a key that this one lacks; restart it with their --encryption-key-file", "key", id)
		},
	})
	var refused *sealed.Error
	if errors.As(err, &refused) {
		if file == "" {
			return settings.Usagef("--encryption-key-file: %v", refused)
		}
		return settings.Usagef("--encryption-key-file %q: %v", file, refused)
	}
	if err != nil {
		return err
	}
	a.store, a.sealed = opened, seals
	if a.ring != nil {
		a.log.Info("encryption", "key", a.ring.Current(), "decrypt_only", a.settings.DecryptOnly, "keys_in_file", len(a.ring.IDs()), "keys_in_use", seals.Listed())
	}
	return nil
}

// encrypt re-encrypts values that are under older keys, or plain, until ctx or stopping ends. A store
// that rewrites its files makes callers wait, and a manager that stops must answer the last ones soon.
func (a *app) encrypt(ctx, stopping context.Context) {
	if a.sealed == nil {
		return
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(stopping, stop)()
	if a.ring == nil {
		a.sealed.Run(ctx, nil)
		return
	}
	a.sealed.Run(ctx, func(r sealed.Report, err error) {
		if err != nil {
			a.log.Warn("re-encryption failed; retrying", "error", err.Error())
			return
		}
		a.log.Info("all values are under the current key", "key", a.ring.Current(), "rewritten", r.Rewritten, "unreadable", r.Failed,
			"no_longer_in_use", r.Retired, "still_in_use", a.sealed.Listed(), "took_ms", r.Took.Milliseconds())
	})
}

// newEncryptionCollector returns a collector of which keys are in use; s is nil without encryption.
func newEncryptionCollector(s *sealed.Store) *scrape.Collector {
	return scrape.New(func(m scrape.Sample) error {
		if s == nil {
			return nil
		}
		for _, id := range s.Listed() {
			scrape.Set(m, "oncegate_encryption_key_in_use", 1, id)
		}
		scrape.Set(m, "oncegate_encryption_rewritten_values_total", s.Rewritten())
		scrape.Set(m, "oncegate_encryption_failures_total", s.Failures())
		return nil
	},
		scrape.Describe("oncegate_encryption_key_in_use", "1 for each key, by its id, that stored values may need; the id is empty for values that are not encrypted.", "key"),
		scrape.Describe("oncegate_encryption_rewritten_values_total", "Values that this manager stored again, because they were under an older key or not encrypted."),
		scrape.Describe("oncegate_encryption_failures_total", "How often this manager met an encrypted value that it could not decrypt."))
}
