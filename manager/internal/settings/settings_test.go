package settings

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// from is an environment with nothing but vars.
func from(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

func TestFlagsWinOverTheEnvironment(t *testing.T) {
	env := from(map[string]string{
		"IDEMPOTENCY_PENDING_TTL_SECONDS": "7", "IDEMPOTENCY_MAX_ENTRIES": "123", "IDEMPOTENCY_WAIT_FOR_PENDING": "false",
		"IDEMPOTENCY_REJECTED_TTL_SECONDS": "0.25", "ONCEGATE_JOB_MAX_BYTES": "9000000", "ONCEGATE_JOB_SUBMITTER_SHARE": "0",
	})
	s, err := Parse(env, []string{"--data-dir", "d", "--max-entries", "456", "--scope-share", "0"})
	if err != nil {
		t.Fatal(err)
	}
	if s.Ledger.PendingTTL != 7*time.Second || s.Ledger.MaxEntries != 456 || s.Ledger.ScopeShare >= 0 || s.Ledger.CommittedTTL != 300*time.Second ||
		s.Ledger.RejectedTTL != 250*time.Millisecond || s.Ledger.MaxWait != -1 {
		t.Errorf("%+v", s.Ledger)
	}
	if s.Jobs.MaxBytes != 9_000_000 || s.Jobs.OwnerShare != -1 {
		t.Errorf("%+v", s.Jobs)
	}
	if s.Ledger.WithDefaults().UnknownTTL != 300*time.Second {
		t.Errorf("unknown outcomes are remembered for %v", s.Ledger.UnknownTTL)
	}
	if s, err = Parse(env, []string{"--data-dir=d", "--unknown-ttl-seconds=0"}); err != nil || s.Ledger.UnknownTTL != api.NoUnknown {
		t.Errorf("unknown outcomes are remembered for %v, %v", s.Ledger.UnknownTTL, err)
	}
	if s, err = Parse(env, []string{"--data-dir=d", "--wait-for-pending"}); err != nil || s.Ledger.MaxWait != 30*time.Second {
		t.Errorf("a flag without a value: %+v %v", s, err)
	}
}

// TestDefaultsAreAsDocumented pins the values that are documented.
func TestDefaultsAreAsDocumented(t *testing.T) {
	s, err := Parse(from(nil), []string{"--data-dir", "d"})
	if err != nil {
		t.Fatal(err)
	}
	l := s.Ledger
	if l.PendingTTL != 60*time.Second || l.CommittedTTL != 300*time.Second || l.RejectedTTL != 60*time.Second || l.MaxEntries != 0 || l.MaxBytes != 16<<30 ||
		l.ScopeShare != 0.75 ||
		l.CleanupInterval != 10*time.Second || l.MaxWait != 30*time.Second || s.Store != "wal" {
		t.Errorf("%+v", s)
	}
	if s.Jobs.MaxBytes != 16<<30 || s.Jobs.OwnerShare != 0.5 {
		t.Errorf("%+v", s.Jobs)
	}
	if s.CacheBytes != 256<<20 {
		t.Errorf("%d bytes for records", s.CacheBytes)
	}
	if err := l.WithDefaults().Validate(); err != nil {
		t.Error(err)
	}
}

// TestRoomByEngine: records take the disk, with the engines wal and sqlite, or memory, which is smaller. What is given
// counts with each.
func TestRoomByEngine(t *testing.T) {
	for engine, want := range map[string]int64{"wal": 16 << 30, "sqlite": 16 << 30, "memory": 512 << 20, "redis": 512 << 20, "postgres": 512 << 20, "etcd": 512 << 20} {
		args := []string{"--store", engine}
		switch engine {
		case "wal", "sqlite":
			args = append(args, "--data-dir", "d")
		case "redis":
			args = append(args, "--store-dsn", "redis://h/0")
		case "postgres":
			args = append(args, "--store-dsn", "postgres://h/d")
		case "etcd":
			args = append(args, "--store-dsn", "http://h:2379")
		}
		s, err := Parse(from(nil), args)
		if err != nil {
			t.Fatal(err)
		}
		if s.Ledger.MaxBytes != want || s.Jobs.MaxBytes != want {
			t.Errorf("%s: %d and %d bytes, want %d", engine, s.Ledger.MaxBytes, s.Jobs.MaxBytes, want)
		}
		if n := int64(s.Ledger.WithDefaults().MaxEntries); n != want/512 {
			t.Errorf("%s: %d entries in %d bytes", engine, n, want)
		}
		given := 0
		for _, v := range s.Values() {
			if v.Name == "max-bytes" || v.Name == "job-max-bytes" {
				given++
				if v.Value != strconv.FormatInt(want, 10) || v.From != "" {
					t.Errorf("%s: %+v, want %d", engine, v, want)
				}
			}
		}
		if given != 2 {
			t.Errorf("%s: %d values, want 2", engine, given)
		}
		s, err = Parse(from(map[string]string{"ONCEGATE_JOB_MAX_BYTES": "9000000"}), append(args, "--max-bytes", "8000000"))
		if err != nil || s.Ledger.MaxBytes != 8_000_000 || s.Jobs.MaxBytes != 9_000_000 {
			t.Errorf("%s: %d and %d bytes, %v", engine, s.Ledger.MaxBytes, s.Jobs.MaxBytes, err)
		}
	}
}

// TestMostEntries: a window on disk may have a billion entries.
func TestMostEntries(t *testing.T) {
	s, err := Parse(from(nil), []string{"--data-dir", "d", "--max-entries", "1000000000"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Ledger.WithDefaults().Validate(); err != nil || s.Ledger.MaxEntries != 1_000_000_000 {
		t.Errorf("%d entries, %v", s.Ledger.MaxEntries, err)
	}
	if s, err = Parse(from(nil), []string{"--data-dir", "d", "--max-bytes", "1099511627776"}); err != nil || s.Ledger.WithDefaults().MaxEntries != 1_000_000_000 {
		t.Errorf("a TiB: %d entries, %v", s.Ledger.WithDefaults().MaxEntries, err)
	}
}

// TestNames: a variable has the name of its flag after ONCEGATE_, except for the seven of the ledger's times and
// limits, and a flag that counts seconds says so.
func TestNames(t *testing.T) {
	ledger := []string{"IDEMPOTENCY_PENDING_TTL_SECONDS", "IDEMPOTENCY_COMMITTED_TTL_SECONDS", "IDEMPOTENCY_REJECTED_TTL_SECONDS", "IDEMPOTENCY_MAX_ENTRIES",
		"IDEMPOTENCY_CLEANUP_INTERVAL_SECONDS", "IDEMPOTENCY_WAIT_FOR_PENDING", "IDEMPOTENCY_PENDING_WAIT_TIMEOUT"}
	for _, s := range new(Settings).all() {
		if own := "ONCEGATE_" + strings.ToUpper(strings.ReplaceAll(s.name, "-", "_")); s.env != "" && s.env != own && !slices.Contains(ledger, s.env) {
			t.Errorf("--%s: %s, want %s", s.name, s.env, own)
		}
		if strings.Contains(s.usage, "a number of seconds") != strings.HasSuffix(s.name, "-seconds") {
			t.Errorf("--%s: %s", s.name, s.usage)
		}
	}
}
