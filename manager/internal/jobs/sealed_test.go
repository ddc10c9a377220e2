package jobs_test

import (
	"encoding/base64"
	"path/filepath"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/crypt"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/jobs/jobstest"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/sealed"
	"github.com/oncegate/oncegate/manager/internal/store/sqlite"
)

// seal returns a store around st whose jobs are encrypted.
func seal(t testing.TB, st store.Store) store.Store {
	t.Helper()
	ring, err := crypt.Parse([]byte("k:" + base64.StdEncoding.EncodeToString(make([]byte, crypt.KeyBytes))))
	if err != nil {
		t.Fatal(err)
	}
	s, _, err := sealed.Open(t.Context(), st, sealed.Options{Ring: ring, Places: []sealed.Place{
		{Collection: jobs.Collection, Describe: func(hit store.Hit, plain []byte) (entries []store.Entry, blobs []store.ID, err error) {
			r, err := jobs.ReadRecord(jobs.Collection, hit.Key, plain)
			for key := range r.Blobs {
				blobs = append(blobs, store.ID{Collection: jobs.BlobCollection, Key: key})
			}
			return r.Entries, blobs, err
		}},
		{Collection: jobs.BlobCollection, Unindexed: true},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEncryptedMemory(t *testing.T) {
	suite(t, jobstest.Engine{Name: "encrypted memory", Divided: divided, Jobs: 300, Workers: 8, Runs: 20, Slow: true, Open: func(t testing.TB) *jobstest.Instance {
		return &jobstest.Instance{Store: closed(t, seal(t, mem.New(mem.Options{})))}
	}})
}

func TestEncryptedSQLite(t *testing.T) {
	suite(t, jobstest.Engine{Name: "encrypted sqlite", Divided: divided, Jobs: 100, Workers: 6, Runs: 5, Slow: true, Open: func(t testing.TB) *jobstest.Instance {
		path := filepath.Join(t.TempDir(), "jobs.db")
		open := func(t testing.TB) store.Store {
			s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
			if err != nil {
				t.Fatalf("open %s: %v", path, err)
			}
			return closed(t, seal(t, s))
		}
		s := open(t)
		return &jobstest.Instance{Store: s, Reopen: reopener(s, open)}
	}})
}
