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

// catalog lists the named logs that there are and were, with the prefixes of their objects. Like a
// manifest it is replaced only if it did not change.
type catalog struct {
	Version int `json:"version"`
	// Term, Edit and Writer are as in a manifest.
	Term   uint64         `json:"term"`
	Edit   uint64         `json:"edit"`
	Writer string         `json:"writer"`
	Logs   []catalogEntry `json:"logs"`
}

// catalogEntry is a named log from when it was made until it was deleted. A log of that name that is made later has an
// entry of its own.
type catalogEntry struct {
	// Name of the log, and ID of its write-ahead log when it was shipped first.
	Name string `json:"name"`
	ID   string `json:"id"`
	// Prefix is that of its objects. It is used once.
	Prefix string `json:"place"`
	// Shipped says that it was shipped completely once. Before that, it may have no objects.
	Shipped bool `json:"shipped,omitempty"`
	// Made is the first time to restore it to, Deleted when it was deleted, 0 if it was not.
	// Both in Unix milliseconds of the manager's clock.
	Made    int64 `json:"made"`
	Deleted int64 `json:"deleted,omitempty"`
	// Gone says that its objects are being deleted.
	Gone bool `json:"gone,omitempty"`
}

// restorable reports whether the log was there at a time and can be restored to it.
func (e *catalogEntry) restorable(at int64) bool {
	return e.Shipped && !e.Gone && e.Made <= at && (e.Deleted == 0 || at < e.Deleted)
}

// current reports whether the log was not deleted.
func (e *catalogEntry) current() bool { return e.Deleted == 0 && !e.Gone }

// end records that the log was deleted.
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

// catalogOf reads the catalog of a destination whose ledger has this manifest; nil when it has
// none. If it is missing but the manifest has Catalog, the error is a *DamageError.
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
