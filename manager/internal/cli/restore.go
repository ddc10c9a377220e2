package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/crypt"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/logs/storelogs"
	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/quarantine"
	"github.com/oncegate/oncegate/manager/internal/settings"
	"github.com/oncegate/oncegate/manager/internal/ship"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/sealed"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// maxQuarantine is the longest one that may be asked for.
const maxQuarantine = settings.MaxSeconds * time.Second

// restoreOptions are the flags of "oncegate restore".
type restoreOptions struct {
	from       object.Store
	dataDir    string
	at         time.Time
	quarantine time.Duration
	ring       *crypt.Keyring
	given      bool // the quarantine
}

const restoreUsage = `usage: oncegate restore --from URL --data-dir NEW [--at TIME] [--quarantine DURATION] [--encryption-key-file FILE]
Makes a data directory from what a manager shipped with --ship-to. No manager needs to run.
  --from        where the copies are: ` + object.Forms + `
  --data-dir    the new data directory; must be absent or empty
  --at          restore everything acknowledged before this time, as 2006-01-02T15:04:05Z (default the newest state);
                what came within one ship interval after it may be there as well
  --quarantine  for how long a manager on the new directory refuses unknown keys, and its logs unknown ids, as 5m;
                0s: not at all (default the longest time for which a key was to be remembered, and for logs the longest window)
  --encryption-key-file  the manager's; without it encrypted records are restored without a look into them
`

func restoreMain(ctx context.Context, env Environment, args []string) error {
	var o restoreOptions
	fs := flag.NewFlagSet("restore", flag.ContinueOnError)
	var from string
	fs.StringVar(&from, "from", "", "")
	fs.StringVar(&o.dataDir, "data-dir", "", "")
	timeFlag(fs, "at", &o.at)
	spanFlag(fs, "quarantine", &o.quarantine, &o.given)
	keyFile := keyFileFlag(fs)
	if err := parseOnlyFlags(fs, args, func() { fmt.Fprint(env.Stdout, restoreUsage) }); err != nil {
		return err
	}
	if o.dataDir == "" {
		return settings.Usagef("--data-dir: is missing; must be the name of a new directory")
	}
	var err error
	if o.ring, err = keyFile(); err != nil {
		return err
	}
	if o.from, err = bucketOf(from, env); err != nil {
		return err
	}
	return restore(ctx, env, o)
}

// timeFlag adds a flag for a point in time.
func timeFlag(fs *flag.FlagSet, name string, at *time.Time) {
	fs.Func(name, "", func(v string) (err error) {
		if *at, err = api.ParseTime(v); err != nil {
			return errors.New("must be a time as 2006-01-02T15:04:05Z")
		}
		return nil
	})
}

// spanFlag adds a flag for the length of a quarantine, a duration with a unit.
func spanFlag(fs *flag.FlagSet, name string, to *time.Duration, given *bool) {
	fs.Func(name, "", func(v string) (err error) {
		*given = true
		if *to, err = time.ParseDuration(v); err != nil || *to < 0 || *to > maxQuarantine {
			return fmt.Errorf("must be a duration from 0s to %s, as 1s or 24h", maxQuarantine)
		}
		return nil
	})
}

func bucketOf(from string, env Environment) (object.Store, error) {
	if from == "" {
		return nil, settings.Usagef("--from: is missing; must be " + object.Forms)
	}
	return settings.Bucket("from", from, env.Getenv)
}

// recordChecks look into the records under a prefix, for restore and for ship verify.
type recordChecks struct {
	ring *crypt.Keyring
	// longest is for how long a reservation among them was to be remembered at most.
	longest time.Duration
	// window is the longest one of the named logs among them.
	window time.Duration
	// unread and opened are reservations that are encrypted, lacks the ids of keys that the ring lacks.
	unread, opened int
	lacks          map[string]bool
}

// options returns those of a restore that asks c about each record.
func (c *recordChecks) options(bucket object.Store, at time.Time) ship.RestoreOptions {
	return ship.RestoreOptions{Store: bucket, At: at, Check: c.check}
}

func (c *recordChecks) check(e wal.Entry) error {
	_, err := mem.DecodeWriteSet(e.Body, func(change *mem.Change) error {
		if change.Delete {
			return nil
		}
		if window, ok := storelogs.WindowOf(store.Collection(change.Collection), string(change.Key), change.Value); ok {
			c.window = max(c.window, window)
		}
		if string(change.Collection) != string(ledger.Collection) {
			return nil
		}
		value, err := sealed.OpenValue(c.ring, ledger.Collection, string(change.Key), change.Value)
		if err == nil {
			c.opened++
			c.longest = max(c.longest, ledger.Remembered(string(change.Key), value))
			return nil
		}
		if id, ok := crypt.KeyOf(change.Value); ok && c.ring != nil && !c.ring.Has(id) {
			if c.lacks == nil {
				c.lacks = make(map[string]bool)
			}
			c.lacks[id] = true
		}
		at, ok := ledger.RememberedByEntries(func(index string) string {
			for _, e := range change.Entries {
				if string(e.Index) == index {
					return string(e.SortKey)
				}
			}
			return ""
		})
		c.longest = max(c.longest, at)
		if !ok {
			c.unread++
		}
		return nil
	})
	return err
}

// keysOpen returns an error when no manager could use the records with the keys of the ring.
func (c *recordChecks) keysOpen() error {
	switch {
	case len(c.lacks) > 0:
		return fmt.Errorf("--encryption-key-file: lacks the keys %q, under which records are encrypted; it must have all keys of the manager", slices.Sorted(maps.Keys(c.lacks)))
	case c.ring != nil && c.unread > 0 && c.opened == 0:
		return errors.New("--encryption-key-file: opens none of the records; it must have the manager's keys under their ids")
	}
	return nil
}

func restore(ctx context.Context, env Environment, o restoreOptions) error {
	var kept time.Duration
	records := recordChecks{ring: o.ring}
	from := records.options(o.from, o.at)
	from.Dir = o.dataDir
	from.Prepare = func(dir string, r *ship.Report) error {
		if err := records.keysOpen(); err != nil {
			return err
		}
		// Entries from before the manager shipped may have asked for more.
		records.longest = max(records.longest, r.LongestTTL)
		// So may ids, and those of logs that were deleted or made later.
		records.window = max(records.window, r.LongestWindow)
		var refuses time.Duration
		kept, refuses = records.longest, records.window
		if o.given {
			kept, refuses = o.quarantine, o.quarantine
		}
		record := quarantine.Record{Remaining: kept.Milliseconds(), RestoredTo: r.At, EpochFloor: quarantine.NextFloor(time.Now(), r.EpochFloor)}
		if records.window > 0 {
			record.Logs = refuses.Milliseconds()
		}
		return quarantine.Write(dir, record)
	}
	r, err := ship.Restore(ctx, from)
	var dir *ship.DirError
	if errors.As(err, &dir) {
		return settings.Usagef("--data-dir %v", dir)
	}
	if err != nil {
		return oneLine(err)
	}
	fmt.Fprintf(env.Stdout, "restored %s to sequence %d, as of %s: %d records from %d objects in %d ms\n",
		o.dataDir, r.Sequence, r.At.UTC().Format(time.RFC3339Nano), r.Records, r.Objects, r.Took.Milliseconds())
	if records.unread > 0 && !o.given {
		fmt.Fprintf(env.Stdout, "warning: %d reservations are encrypted and were not looked into: if a request set an unknown TTL of its own, longer than what the manager shipped says, retries of forgotten keys may run again; --encryption-key-file reads them\n", records.unread)
	}
	if o.given && kept < records.longest {
		fmt.Fprintf(env.Stdout, "warning: --quarantine %v is shorter than %v, for which keys were remembered: retries of forgotten keys may run again\n", kept, records.longest)
	}
	if kept > 0 {
		fmt.Fprintf(env.Stdout, "a manager on it refuses unknown keys for the first %v in which it serves\n", kept)
	}
	switch {
	case records.window == 0:
	case o.given && o.quarantine < records.window:
		fmt.Fprintf(env.Stdout, "warning: --quarantine %v is shorter than %v, for which logs remembered ids: retries of forgotten entries are appended again\n", o.quarantine, records.window)
	case !o.given:
		fmt.Fprintf(env.Stdout, "its logs refuse unknown ids for the first %v in which it serves\n", records.window)
	}
	return nil
}

// oneLine puts what several objects say into one line.
func oneLine(err error) error {
	return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
}
