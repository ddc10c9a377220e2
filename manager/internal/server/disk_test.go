package server

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// siteOnDisk is a site whose ledger is on a log on fs.
func siteOnDisk(t *testing.T, fs *faultfs.FS) *site {
	t.Helper()
	st, err := mem.Open(t.Context(), "data", mem.Options{
		State: fs.Pebble(),
		Log:   wal.Options{FS: fs, SegmentBytes: 16 << 10, SpaceRetry: time.Millisecond, FillAhead: -1},
	})
	if err != nil {
		t.Fatal(err)
	}
	return newSite(t, siteOptions{store: st})
}

// Calls that change something are refused, other calls are answered,
// and space that comes back is enough.
func TestFullDiskRefusesChangesOnly(t *testing.T) {
	fs := &faultfs.FS{}
	s := siteOnDisk(t, fs)
	s.JSON("POST", api.PathReserve, `{"key":"done","token":"t"}`)
	s.JSON("POST", api.PathCommit, `{"key":"done","token":"t","result":{"status":201,"body":"aGk="}}`)
	s.JSON("POST", api.PathReserve, `{"key":"open","token":"t"}`)
	fs.SetCapacity(40 << 10)
	var a httpdtest.Answer
	for i := range 10_000 {
		if a = s.JSON("POST", api.PathReserve, fmt.Sprintf(`{"key":"k%d","token":"t"}`, i)); a.Status != 201 {
			break
		}
	}
	if a.Status != 503 || !strings.Contains(a.Body, `"code":"insufficient-storage"`) || a.Header.Get("retry-after") != "5" {
		t.Fatalf("a reserve on a full disk: %d %v %s", a.Status, a.Header, a.Body)
	}
	if a := s.JSON("POST", api.PathCommit, `{"key":"open","token":"t","result":{"status":201}}`); a.Status != 503 {
		t.Errorf("a commit on a full disk: %d %s", a.Status, a.Body)
	}
	if a := s.JSON("POST", api.PathReserve, `{"key":"done","token":"u"}`); a.Status != 200 || !strings.Contains(a.Body, `"body":"aGk="`) {
		t.Errorf("a replay on a full disk: %d %s", a.Status, a.Body)
	}
	if a := s.JSON("POST", api.PathReserve, `{"key":"open","token":"u"}`); a.Status != 202 {
		t.Errorf("a duplicate on a full disk: %d %s", a.Status, a.Body)
	}
	for _, path := range []string{"/v1/ledger/entries/done", "/v1/ledger/entries", "/v1/ledger/stats", "/readyz"} {
		if a := s.JSON("GET", path, ""); a.Status != 200 {
			t.Errorf("%s on a full disk: %d %s", path, a.Status, a.Body)
		}
	}
	fs.SetCapacity(0)
	s.Eventually("the commit is accepted", func() bool {
		return s.JSON("POST", api.PathCommit, `{"key":"open","token":"t","result":{"status":201}}`).Status == 200
	})
	if a := s.JSON("POST", api.PathReserve, `{"key":"new","token":"t"}`); a.Status != 201 {
		t.Errorf("with space again: %d %s", a.Status, a.Body)
	}
}

// TestFailedSyncAnswersNobody: the call that meets a failed fsync, and every
// one after it, reads included, is answered 503.
func TestFailedSyncAnswersNobody(t *testing.T) {
	fs := &faultfs.FS{}
	s := siteOnDisk(t, fs)
	s.JSON("POST", api.PathReserve, `{"key":"k","token":"t"}`)
	fs.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.Sync {
			return syscall.EIO
		}
		return nil
	})
	commit := `{"key":"k","token":"t","result":{"status":201}}`
	for range 2 {
		if a := s.JSON("POST", api.PathCommit, commit); a.Status != 503 || !strings.Contains(a.Body, `"code":"unavailable"`) {
			t.Errorf("commit: %d %s", a.Status, a.Body)
		}
	}
	if a := s.JSON("POST", api.PathReserve, `{"key":"k","token":"u"}`); a.Status != 503 {
		t.Errorf("a duplicate: %d %s", a.Status, a.Body)
	}
	if a := s.JSON("GET", "/v1/ledger/entries/k", ""); a.Status != 503 {
		t.Errorf("a look: %d %s", a.Status, a.Body)
	}
}
