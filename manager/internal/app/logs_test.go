package app

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/settings"
	"github.com/oncegate/oncegate/manager/internal/ship"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

type capable struct {
	store.Store
	caps store.Capabilities
}

func (c capable) Capabilities() store.Capabilities { return c.caps }

// TestNoLogsWhereTheyMayBeLost: a server that may lose what it acknowledged keeps no logs, and the answer says why.
func TestNoLogsWhereTheyMayBeLost(t *testing.T) {
	for why, a := range map[string]*app{
		"appendfsync always": {settings: &settings.Settings{Store: "redis", MaxLogs: 1}, store: capable{caps: store.Capabilities{Name: "redis", Shared: true}}},
		"--max-logs is 0":    {settings: &settings.Settings{Store: "wal"}, store: capable{}},
	} {
		if err := a.openLogs(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, _, err := a.logs.Put(t.Context(), "log", logs.Change{}); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("making a log: %v, want %s", err, why)
		}
	}
}

// TestUnreadableLogIsNotShipped: the other logs are shipped, and what the prefix has of it stays.
func TestUnreadableLogIsNotShipped(t *testing.T) {
	dir, place := t.TempDir(), object.OpenDir(t.TempDir())
	start := func(journal io.Writer) (a *app, stop func()) {
		t.Helper()
		log := slog.New(slog.NewTextHandler(journal, nil))
		ledger, err := wal.Open(t.Context(), dir, wal.Options{SegmentBytes: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		if seq, err := ledger.Append([]byte("record")); err != nil || ledger.WaitDurable(t.Context(), seq) != nil {
			t.Fatal(err)
		}
		a = &app{settings: &settings.Settings{Store: "wal", DataDir: dir, MaxLogs: 8}, store: capable{}, log: log}
		if a.shipper, err = ship.New(ship.Options{Store: place, Interval: 5 * time.Millisecond, HolderFile: filepath.Join(dir, shipHolder), Logger: log}); err != nil {
			t.Fatal(err)
		}
		a.shipper.Add(ship.LedgerLog, ship.WAL(ledger), false)
		if err := a.openLogs(t.Context()); err != nil {
			t.Fatal(err)
		}
		a.shipper.Start(ship.Ledger{})
		return a, func() {
			a.shipper.Close(t.Context()) // it ships all first
			a.closeLogs()
			if err := ledger.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	add := func(a *app, name string) {
		t.Helper()
		if _, _, err := a.logs.Put(t.Context(), name, logs.Change{}); err != nil {
			t.Fatal(err)
		}
		if _, err := a.logs.Append(t.Context(), name, []logs.Item{{Payload: []byte("entry")}}, false); err != nil {
			t.Fatal(err)
		}
	}
	// Of each log the prefix has its records, the settings first.
	mustHave := func(want map[string]uint64) {
		t.Helper()
		st, err := ship.ReadStatus(t.Context(), place, "")
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[string]uint64)
		for _, l := range st.Logs {
			if l.Deleted != nil {
				t.Errorf("log %s counts as deleted", l.Name)
			}
			got[l.Name] = l.Sequence
		}
		if !maps.Equal(got, want) {
			t.Errorf("the prefix has %v, want %v", got, want)
		}
	}
	a, stop := start(io.Discard)
	add(a, "good")
	add(a, "bad")
	stop()
	mustHave(map[string]uint64{"good": 2, "bad": 2})

	bad, away := filepath.Join(dir, logsDir, "bad"), filepath.Join(t.TempDir(), "bad")
	if err := errors.Join(os.Rename(bad, away), os.Mkdir(bad, 0o700), os.WriteFile(filepath.Join(bad, "stray"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	var journal bytes.Buffer
	a, stop = start(&journal)
	add(a, "good")
	add(a, "new")
	stop()
	mustHave(map[string]uint64{"good": 3, "bad": 2, "new": 2})
	if !strings.Contains(journal.String(), "log is not shipped") {
		t.Errorf("nothing is logged: %s", &journal)
	}

	if err := errors.Join(os.RemoveAll(bad), os.Rename(away, bad)); err != nil {
		t.Fatal(err)
	}
	a, stop = start(io.Discard)
	add(a, "bad")
	stop()
	mustHave(map[string]uint64{"good": 3, "bad": 3, "new": 2})
}
