package ship

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/oncegate/oncegate/manager/internal/object"
)

const (
	catalogVersion = 1
	catalogObject  = "catalog"
)

// catalog tells which named logs there are and were, and where their objects are. Like a
// manifest it is replaced only under the condition that nobody else did.
type catalog struct {
	Version int `json:"version"`
	// Term, Edit and Writer are as in a manifest.
	Term   uint64         `json:"term"`
	Edit   uint64         `json:"edit"`
	Writer string         `json:"writer"`
	Logs   []catalogEntry `json:"logs"`
}

// catalogEntry is one life of a log, from when it was made until it was deleted.
type catalogEntry struct {
	// Name of the log, and ID of its write-ahead log when it was shipped first.
	Name string `json:"name"`
	ID   string `json:"id"`
	// Place is the name of its objects. It is used once.
	Place string `json:"place"`
	// Shipped says that it was shipped completely once. Before, there may be nothing.
	Shipped bool `json:"shipped,omitempty"`
	// Made is the first time to restore it to, Deleted when it was deleted, 0 while it is there.
	// Both in Unix milliseconds of the manager's clock.
	Made    int64 `json:"made"`
	Deleted int64 `json:"deleted,omitempty"`
	// Gone says that its objects are being deleted.
	Gone bool `json:"gone,omitempty"`
}

// lives tells whether the log was there at a time, and can be restored to it.
func (e *catalogEntry) lives(at int64) bool {
	return e.Shipped && !e.Gone && e.Made <= at && (e.Deleted == 0 || at < e.Deleted)
}

// current tells whether it is the life of a log that goes on.
func (e *catalogEntry) current() bool { return e.Deleted == 0 && !e.Gone }

// end notes that the log was deleted.
func (e *catalogEntry) end(at int64) {
	e.Deleted = max(at, e.Made, 1)
	e.Gone = e.Gone || !e.Shipped
}

func (c *catalog) clone() *catalog {
	n := *c
	n.Logs = slices.Clone(c.Logs)
	return &n
}

// readCatalog returns object.ErrNotFound when there is none.
func readCatalog(ctx context.Context, s object.Store) (*catalog, object.Version, error) {
	b, v, err := s.Get(ctx, catalogObject)
	if err != nil {
		return nil, "", err
	}
	c, err := decodeCatalog(b)
	if err != nil {
		return nil, "", &DamageError{Object: catalogObject, Reason: err.Error()}
	}
	if c.Version != catalogVersion {
		return nil, "", fmt.Errorf("ship: %s has format version %d, this program knows %d", catalogObject, c.Version, catalogVersion)
	}
	return c, v, nil
}

// writeCatalog replaces the catalog of version v, as writeManifest does.
func writeCatalog(ctx context.Context, s object.Store, c *catalog, v object.Version) (object.Version, error) {
	b, err := encodeSummed(c)
	if err != nil {
		return "", err
	}
	return swap(ctx, s, catalogObject, b, v, func(now []byte) verdict {
		found, err := decodeCatalog(now)
		switch {
		case err != nil || found.Writer != c.Writer || found.Term != c.Term || found.Edit > c.Edit:
			return foreign
		case found.Edit == c.Edit:
			return own
		}
		return unchanged
	})
}

func decodeCatalog(b []byte) (*catalog, error) {
	c := new(catalog)
	return c, decodeSummed(b, c)
}

// catalogOf reads the catalog of a place whose ledger has this manifest; nil when the place has
// none. One that is missing though the manifest knows of it is a *DamageError.
func catalogOf(ctx context.Context, s object.Store, m *manifest) (*catalog, error) {
	c, _, err := readCatalog(ctx, s)
	if errors.Is(err, object.ErrNotFound) {
		if m.Catalog {
			return nil, missing(catalogObject)
		}
		return nil, nil
	}
	return c, err
}
