package cli

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/internal/crypt"
	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/ship"
)

const shipUsage = `usage: oncegate ship status --from URL
       oncegate ship verify --from URL [--at TIME] [--encryption-key-file FILE]
status  prints as JSON what was shipped: the lease, the last sequence, and the times to restore to
verify  prints what a restore would restore, and names all that is missing or damaged
Both read and check everything that a restore reads, and write nothing. The exit code is 0 only if a restore would succeed.
  --from  where the copies are: ` + object.Forms + `
  --at    check the state of this time, as 2006-01-02T15:04:05Z (default the newest state)
  --encryption-key-file  the manager's; without it encrypted records are not looked into
`

func shipMain(ctx context.Context, env Environment, args []string) error {
	help := func() { fmt.Fprint(env.Stdout, shipUsage) }
	word, err := chosen(args, help, "status", "verify")
	if err != nil {
		return err
	}
	fs := flag.NewFlagSet("ship", flag.ContinueOnError)
	var from string
	var at time.Time
	keyFile := func() (*crypt.Keyring, error) { return nil, nil }
	fs.StringVar(&from, "from", "", "")
	if word == "verify" {
		timeFlag(fs, "at", &at)
		keyFile = keyFileFlag(fs)
	}
	if err := parseOnlyFlags(fs, args[1:], help); err != nil {
		return err
	}
	ring, err := keyFile()
	if err != nil {
		return err
	}
	bucket, err := bucketOf(from, env)
	if err != nil {
		return err
	}
	if word == "status" {
		return shipStatus(ctx, env, bucket)
	}
	return shipVerify(ctx, env, bucket, at, ring)
}

// restorable is the newest state that a restore makes.
type restorable struct {
	Sequence uint64    `json:"sequence"`
	At       time.Time `json:"at"`
}

func shipStatus(ctx context.Context, env Environment, bucket object.Store) error {
	st, err := ship.ReadStatus(ctx, bucket)
	var newest *restorable
	if err == nil {
		var r *ship.Report
		if r, err = ship.Verify(ctx, new(recordChecks).options(bucket, time.Time{})); err == nil {
			newest = &restorable{r.Sequence, r.At.UTC()}
		}
	}
	if st != nil { // with damage, what else is known
		out := json.NewEncoder(env.Stdout)
		out.SetIndent("", "  ")
		if err := out.Encode(struct {
			*ship.Status
			Restorable *restorable `json:"restorable"`
		}{st, newest}); err != nil {
			return err
		}
	}
	if err != nil {
		return oneLine(err)
	}
	return nil
}

func shipVerify(ctx context.Context, env Environment, bucket object.Store, at time.Time, ring *crypt.Keyring) error {
	records := recordChecks{ring: ring}
	r, err := ship.Verify(ctx, records.options(bucket, at))
	if err == nil {
		err = records.keysOpen()
	}
	if err != nil {
		return oneLine(err)
	}
	fmt.Fprintf(env.Stdout, "the ledger can be restored to sequence %d, as of %s: %d records in %d objects, %d bytes\n",
		r.Sequence, r.At.UTC().Format(time.RFC3339Nano), r.Records, r.Objects, r.Bytes)
	if records.unread > 0 {
		fmt.Fprintf(env.Stdout, "warning: %d reservations are encrypted and were not looked into: --encryption-key-file reads them\n", records.unread)
	}
	return nil
}
