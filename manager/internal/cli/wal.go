package cli

import (
	"bufio"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/oncegate/oncegate/manager/internal/crypt"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/quarantine"
	"github.com/oncegate/oncegate/manager/internal/settings"
	"github.com/oncegate/oncegate/manager/internal/shard"
	"github.com/oncegate/oncegate/manager/internal/ship"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/sealed"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// walCommand is one word after "oncegate wal". All but repair only read, and all
// only work while no manager has the directory open.
type walCommand struct {
	summary string
	run     func(ctx context.Context, env Environment, o walOptions) error
}

type walOptions struct {
	dataDir string
	values  bool
	ring    *crypt.Keyring // nil without --encryption-key-file
}

var walCommands = map[string]walCommand{
	"verify": {"check every record; exit code 1 when a manager would refuse to start, 3 when it would start and cannot read some", walVerify},
	"dump":   {"print every record as a line of JSON", walDump},
	"stats":  {"print what the directory holds as JSON", walStats},
	"repair": {"remove what is damaged in the state; calls that name a record that was lost stay refused", walRepair},
}

func walMain(ctx context.Context, env Environment, args []string) error {
	var o walOptions
	help := func() { walHelp(env.Stdout) }
	word, err := chosen(args, help, "verify", "dump", "stats", "repair")
	if err != nil {
		return err
	}
	flags := flag.NewFlagSet("wal", flag.ContinueOnError)
	flags.StringVar(&o.dataDir, "data-dir", "", "directory of the log")
	keyFile := keyFileFlag(flags)
	if word == "dump" {
		flags.BoolVar(&o.values, "values", false, "print values as well, in base64")
	}
	if err := parseOnlyFlags(flags, args[1:], help); err != nil {
		return err
	}
	if o.dataDir == "" {
		return settings.Usagef("--data-dir: is missing; must be the directory of a log")
	}
	if o.ring, err = keyFile(); err != nil {
		return err
	}
	return walCommands[word].run(ctx, env, o)
}

func walHelp(w io.Writer) {
	fmt.Fprintln(w, "usage: oncegate wal COMMAND --data-dir D; the manager must not be running")
	names := slices.Sorted(maps.Keys(walCommands))
	for _, name := range names {
		fmt.Fprintf(w, "  %-8s %s\n", name, walCommands[name].summary)
	}
	fmt.Fprintln(w, "dump takes --values to print values as well, in base64.")
	fmt.Fprintln(w, "verify and dump take --encryption-key-file FILE, the manager's, to read encrypted values.")
}

// walVerify says what a manager would do with the directory: start, start and refuse
// the keys of some records, or not start.
func walVerify(ctx context.Context, env Environment, o walOptions) error {
	if _, err := os.Lstat(filepath.Join(o.dataDir, ship.PartialDir)); err == nil {
		return fmt.Errorf("a restore into %s was cut off; a manager refuses to start on it: restore again", o.dataDir)
	}
	if _, err := quarantine.ReadDir(o.dataDir); err != nil {
		return fmt.Errorf("a manager refuses to start on %s: %w", o.dataDir, err)
	}
	records := newRecordCheck(o.ring)
	r, err := mem.Verify(ctx, o.dataDir, mem.InspectOptions{Log: wal.InspectOptions{Check: records.entry}, Unreadable: records.unreadable})
	if err != nil {
		return err
	}
	printFindings(env.Stdout, r)
	lines, unreadable := records.found()
	for _, line := range lines {
		fmt.Fprintln(env.Stdout, line)
	}
	unreadable += r.State.Lost
	switch {
	case r.Refused():
		return fmt.Errorf("%s is damaged; a manager would refuse to start on it", o.dataDir)
	case unreadable > 0:
		return &exitError{exitUnreadable, fmt.Sprintf("%s has records that cannot be read: %d; a manager starts on it, answers calls that name one of these with record-unreadable, and serves everything else",
			o.dataDir, unreadable)}
	case len(r.State.Damage) > 0:
		return &exitError{exitUnreadable, o.dataDir + " has damage in its state, and every record can be read; a manager starts on it, and does not find what only a damaged part of an index leads to"}
	}
	has := fmt.Sprintf("%d in the state", r.State.Records)
	if !r.State.InForce && (r.SnapshotRecords > 0 || r.State.Bytes == 0) {
		has = fmt.Sprintf("%d in the snapshot", r.SnapshotRecords)
	}
	fmt.Fprintf(env.Stdout, "ok: %d records in %d segments, %s\n", r.Records, r.Segments, has)
	if records.sealed > 0 {
		fmt.Fprintf(env.Stdout, "note: %d values are encrypted and were not looked into; --encryption-key-file reads them\n", records.sealed)
	}
	return nil
}

// printFindings prints what is wrong with log and state.
func printFindings(w io.Writer, r *mem.Report) {
	for _, c := range r.Complaints {
		fmt.Fprintln(w, c)
	}
	for _, err := range r.Refusals {
		fmt.Fprintf(w, "damage: %v\n", err)
	}
	for _, d := range r.State.Damage {
		fmt.Fprintf(w, "unreadable: %v\n", d)
	}
}

// walRepair makes a state with damage one that a manager can rewrite again.
func walRepair(ctx context.Context, env Environment, o walOptions) error {
	done, err := mem.Repair(ctx, o.dataDir)
	if done != nil { // also where the log cannot be read after it: the next repair finds no damage, and says nothing of this
		for _, d := range done.Damage {
			fmt.Fprintf(env.Stdout, "removed: %v\n", d)
		}
		for _, u := range done.Named {
			fmt.Fprintf(env.Stdout, "lost: %s %q\n", u.Collection, u.Key)
		}
	}
	switch {
	case err != nil:
		return err
	case len(done.Damage) == 0:
		fmt.Fprintln(env.Stdout, "ok: nothing is damaged")
	case done.Lost == 0:
		fmt.Fprintln(env.Stdout, "ok: no record is lost")
	default:
		return &exitError{exitUnreadable, fmt.Sprintf("%s has lost records: %d; a manager answers calls that name one of these with record-unreadable until it is deleted, and serves everything else",
			o.dataDir, done.Lost)}
	}
	return nil
}

// keyFileFlag adds the flag --encryption-key-file. The function reads the file; its result is nil without the flag.
func keyFileFlag(flags *flag.FlagSet) func() (*crypt.Keyring, error) {
	file, given := "", false
	flags.Func("encryption-key-file", "", func(v string) error {
		file, given = v, true
		return nil
	})
	return func() (*crypt.Keyring, error) {
		if !given {
			return nil, nil
		}
		ring, err := crypt.Load(file)
		if err != nil {
			return nil, settings.Usagef("--encryption-key-file %q: %v", file, err)
		}
		return ring, nil
	}
}

// exitUnreadable is the exit code for records that cannot be read.
const exitUnreadable = 3

func walStats(ctx context.Context, env Environment, o walOptions) error {
	var me shard.Identity
	report, err := mem.Verify(ctx, o.dataDir, mem.InspectOptions{Log: wal.InspectOptions{Check: func(e wal.Entry) error {
		_, err := mem.DecodeWriteSet(e.Body, func(c *mem.Change) error {
			if string(c.Collection) == string(shard.Collection) && !c.Delete && !e.Replaced {
				me, _ = shard.Read(string(c.Key), c.Value) // what cannot be read shows nothing
			}
			return nil
		})
		return err
	}}})
	if err != nil {
		return err
	}
	out := json.NewEncoder(env.Stdout)
	out.SetIndent("", "  ")
	s, state := report.DirStats, report.State
	if state.InForce {
		s.Snapshot, s.SnapshotSequence, s.SnapshotRecords, s.SnapshotBytes = "", 0, 0, 0 // it only points to the state
	}
	return out.Encode(struct {
		Segments      int    `json:"segments"`
		Prepared      int    `json:"prepared_segments"`
		SegmentBytes  int64  `json:"segment_bytes"`
		Records       int    `json:"records"`
		RecordBytes   int64  `json:"record_bytes"`
		FirstSequence uint64 `json:"first_sequence"`
		LastSequence  uint64 `json:"last_sequence"`
		Batches       int    `json:"batches"`
		LargestRecord int    `json:"largest_record"`
		TailBytes     int64  `json:"tail_bytes"`
		StateSequence uint64 `json:"state_sequence"`
		StateRecords  int    `json:"state_records"`
		StateBytes    int64  `json:"state_bytes"`
		Damaged       bool   `json:"damaged"`

		// Of a snapshot with records, which no manager has imported yet.
		Snapshot         string `json:"snapshot,omitempty"`
		SnapshotSequence uint64 `json:"snapshot_sequence,omitempty"`
		SnapshotRecords  int    `json:"snapshot_records,omitempty"`
		SnapshotBytes    int64  `json:"snapshot_bytes,omitempty"`

		LedgerID string   `json:"ledger_id"`
		Shard    string   `json:"shard"`
		Shards   []string `json:"shards"`
	}{
		s.Segments, s.Prepared, s.SegmentBytes, s.Records, s.RecordBytes, s.FirstSequence, s.LastSequence, s.Batches,
		s.LargestRecord, s.TailBytes, state.Sequence, state.Records, state.Bytes, report.Refused() || len(state.Damage) > 0,
		s.Snapshot, s.SnapshotSequence, s.SnapshotRecords, s.SnapshotBytes,
		me.ID, me.Name, me.Shards,
	})
}

// dumpedRecord is a line of the dump.
type dumpedRecord struct {
	File     string         `json:"file"`
	Offset   int64          `json:"offset"`
	Sequence uint64         `json:"sequence"`
	Batch    uint64         `json:"batch,omitempty"`
	At       time.Time      `json:"at,omitzero"` // unknown in the state
	Changes  []dumpedChange `json:"changes"`
}

type dumpedChange struct {
	Op         string            `json:"op"`
	Collection string            `json:"collection"`
	Key        string            `json:"key"`
	Bytes      int               `json:"bytes,omitempty"`
	Entries    map[string]string `json:"entries,omitempty"`
	Ledger     *dumpedEntry      `json:"ledger,omitempty"`
	Value      string            `json:"value,omitempty"`
	// EncryptionKey is the id of the key that the value is stored under; Unreadable says why it was not decrypted with
	// the keys that were given.
	EncryptionKey string `json:"encryption_key,omitempty"`
	Unreadable    string `json:"unreadable,omitempty"`
}

// dumpedEntry is a ledger entry without its token.
type dumpedEntry struct {
	Scope       string    `json:"scope"`
	Key         string    `json:"key"`
	State       string    `json:"state"`
	Fingerprint string    `json:"fingerprint,omitempty"`
	JobID       string    `json:"job_id,omitempty"`
	Created     time.Time `json:"created"`
	Expires     time.Time `json:"expires"`
	ResultBytes int       `json:"result_bytes,omitempty"`
}

func walDump(ctx context.Context, env Environment, o walOptions) error {
	w := bufio.NewWriter(env.Stdout)
	out := json.NewEncoder(w)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r, err := mem.Verify(ctx, o.dataDir, mem.InspectOptions{Log: wal.InspectOptions{Check: func(e wal.Entry) error {
		line := dumpedRecord{File: e.File, Offset: e.Offset, Sequence: e.Sequence, Batch: e.Batch}
		at, err := mem.DecodeWriteSet(e.Body, func(c *mem.Change) error {
			line.Changes = append(line.Changes, dumpChange(c, &o))
			return nil
		})
		if err != nil {
			return err
		}
		if line.At = at.UTC(); at.UnixNano() == 0 {
			line.At = time.Time{}
		}
		if err := out.Encode(&line); err != nil {
			stop(err)
		}
		return nil
	}}})
	// What was found before an error is shown.
	if err := cmp.Or(w.Flush(), context.Cause(ctx), err); err != nil {
		return err
	}
	printFindings(env.Stderr, r)
	if r.Refused() || len(r.State.Damage) > 0 {
		return fmt.Errorf("%s is damaged; the dump has the records that can be read", o.dataDir)
	}
	return nil
}

func dumpChange(c *mem.Change, o *walOptions) dumpedChange {
	d := dumpedChange{Op: "delete", Collection: string(c.Collection), Key: string(c.Key)}
	if c.Delete {
		return d
	}
	d.Op, d.Bytes = "put", len(c.Value)
	for _, e := range c.Entries {
		if d.Entries == nil {
			d.Entries = make(map[string]string)
		}
		d.Entries[string(e.Index)] = string(e.SortKey)
	}
	value := c.Value
	if mayBeSealed(store.Collection(d.Collection)) && crypt.IsSealed(value) {
		d.EncryptionKey, _ = crypt.KeyOf(value)
		if o.ring != nil {
			plain, err := sealed.OpenValue(o.ring, store.Collection(d.Collection), d.Key, value)
			if err == nil {
				value = plain
			} else {
				d.Unreadable = err.Error()
			}
		}
	}
	if d.Collection == string(ledger.Collection) {
		if r, err := ledger.ReadRecord(d.Key, value); err == nil {
			d.Ledger = &dumpedEntry{
				Scope: r.Scope, Key: r.Key, State: r.State.String(), Fingerprint: r.Fingerprint, JobID: r.Ref,
				Created: r.Created.UTC(), Expires: r.Expires.UTC(), ResultBytes: r.ResultBytes,
			}
		}
	}
	if o.values {
		d.Value = base64.StdEncoding.EncodeToString(value)
	}
	return d
}
