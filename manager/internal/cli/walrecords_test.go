package cli

import (
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/crypt"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// TestVerifyChecksIndexEntries: an active job has its own index entries, and no others.
func TestVerifyChecksIndexEntries(t *testing.T) {
	st := mem.New(mem.Options{})
	defer st.Close()
	q, err := jobs.New(st, jobs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if _, err := q.Enqueue(t.Context(), jobs.Submission{ID: "a", Function: "f"}); err != nil {
		t.Fatal(err)
	}
	if got, err := q.Claim(t.Context(), jobs.ClaimRequest{Worker: "w"}); err != nil || len(got) != 1 {
		t.Fatalf("claimed %v, %v", got, err)
	}
	var value []byte
	if err := st.View(t.Context(), func(tx store.Tx) (err error) {
		value, err = tx.Get(jobs.Collection, "a")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	r, err := jobs.ReadRecord(jobs.Collection, "a", value)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		entries []store.Entry
		ok      bool
	}{
		"its own":        {r.Entries, true},
		"one more":       {append(r.Entries, store.Entry{Index: "function", SortKey: "f"}), false},
		"none":           {nil, false},
		"one of another": {[]store.Entry{{Index: r.Entries[0].Index, SortKey: r.Entries[0].SortKey + "g"}}, false},
	} {
		change := mem.Change{Collection: []byte(jobs.Collection), Key: []byte("a"), Value: value}
		for _, e := range test.entries {
			change.Entries = append(change.Entries, mem.ChangeEntry{Index: []byte(e.Index), SortKey: []byte(e.SortKey)})
		}
		c := newRecordCheck(nil)
		c.change(&change)
		lines, unreadable := c.found()
		if unreadable > 0 || len(lines) == 0 != test.ok || !test.ok && !strings.Contains(lines[0], "index entries") {
			t.Errorf("%s: %q, %d unreadable", name, lines, unreadable)
		}
	}
}

// TestDigestsAreNotTakenForEncryption: a record of a log that is never encrypted may begin with any byte.
func TestDigestsAreNotTakenForEncryption(t *testing.T) {
	change := mem.Change{Collection: []byte("log_ids"), Key: []byte("k"), Value: make([]byte, logs.IDBytes)}
	if !crypt.IsSealed(change.Value) {
		t.Fatal("it does not begin like an encrypted value")
	}
	for _, keys := range []string{"", keyFile(t)} {
		var o walOptions
		if keys != "" {
			ring, err := crypt.Load(keys)
			if err != nil {
				t.Fatal(err)
			}
			o.ring = ring
		}
		c := newRecordCheck(o.ring)
		c.change(&change)
		if lines, unreadable := c.found(); len(lines) > 0 || unreadable > 0 || c.sealed > 0 {
			t.Errorf("wal verify: %q, %d are encrypted", lines, c.sealed)
		}
		if d := dumpChange(&change, &o); d.EncryptionKey != "" || d.Unreadable != "" {
			t.Errorf("wal dump: %+v", d)
		}
	}
}
