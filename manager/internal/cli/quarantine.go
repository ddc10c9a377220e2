package cli

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/internal/app"
	"github.com/oncegate/oncegate/manager/internal/quarantine"
	"github.com/oncegate/oncegate/manager/internal/settings"
	"github.com/oncegate/oncegate/manager/internal/shard"
	"github.com/oncegate/oncegate/manager/internal/store"
)

const quarantineUsage = `usage: oncegate quarantine begin|end|status --store ENGINE [--store-dsn DSN | --data-dir D] [--for DURATION]
For a store that was restored to an older point by other means than oncegate restore, and for a quarantine that a
manager began itself. begin refuses keys and ids that the store does not know for the first DURATION in which managers
serve, and moves the writers' epochs above all that were given out. It holds for all managers of a store at once.
end prints why there was one: the keys that the reasons name can run again.
  --store      the managers' engine (default wal)
  --store-dsn  address of the server for the engine redis, postgres or etcd [ONCEGATE_STORE_DSN]
  --data-dir   directory of the engine wal or sqlite; begin and end need the manager to be stopped
  --for        with begin: the longest time for which a key or an id is remembered, as 24h; 0s: epochs only
`

// byOperator is why a quarantine began that the command began.
const byOperator = "an operator began it"

// quarantineState is what the command prints.
type quarantineState struct {
	Store            string     `json:"store"`
	RemainingSeconds float64    `json:"remaining_seconds"`
	Began            *time.Time `json:"began,omitempty"`
	EpochFloor       uint64     `json:"epoch_floor"`
	// Why says what may be forgotten, and who knows it.
	Why []string `json:"why,omitempty"`
}

// quarantineMain begins, ends and shows the quarantine of a store.
func quarantineMain(ctx context.Context, env Environment, args []string) error {
	help := func() { fmt.Fprint(env.Stdout, quarantineUsage) }
	word, err := chosen(args, help, "begin", "end", "status")
	if err != nil {
		return err
	}
	var d time.Duration
	given := false
	fs := flag.NewFlagSet("quarantine", flag.ContinueOnError)
	flags := map[string]*string{"store": fs.String("store", "", ""), "store-dsn": fs.String("store-dsn", "", ""), "data-dir": fs.String("data-dir", "", "")}
	spanFlag(fs, "for", &d, &given)
	if err := parseOnlyFlags(fs, args[1:], help); err != nil {
		return err
	}
	if begin := word == "begin"; begin != given {
		return settings.Usagef("--for: begin needs it, and no other command has it")
	}
	var serve []string
	for name, value := range flags {
		if *value != "" {
			serve = append(serve, "--"+name, *value)
		}
	}
	dsn := func(name string) (string, bool) {
		if name != "ONCEGATE_STORE_DSN" || *flags["data-dir"] != "" {
			return "", false
		}
		return env.Getenv(name)
	}
	s, err := settings.Parse(dsn, serve)
	if err != nil {
		return err
	}
	if s.Store == "memory" {
		return settings.Usagef("--store memory: is not restored, it forgets everything when its manager ends")
	}
	state, err := changeQuarantine(ctx, s, word, d)
	if err != nil {
		return err
	}
	out := quarantineState{Store: s.Store, RemainingSeconds: state.Remaining.Seconds(), EpochFloor: state.EpochFloor, Why: state.Why}
	if !state.RestoredTo.IsZero() {
		out.Began = &state.RestoredTo
	}
	lines := json.NewEncoder(env.Stdout)
	lines.SetIndent("", "  ")
	return lines.Encode(out)
}

// changeQuarantine carries a command out.
func changeQuarantine(ctx context.Context, s *settings.Settings, command string, d time.Duration) (quarantine.State, error) {
	if s.DataDir != "" {
		return changeDir(s, command, d)
	}
	return changeShared(ctx, s, command, d)
}

func changeDir(s *settings.Settings, command string, d time.Duration) (state quarantine.State, err error) {
	if command == "status" {
		if err := app.CheckDir(s); err != nil {
			return state, err
		}
		return quarantine.ReadDir(s.DataDir)
	}
	lock, err := app.LockDir(s)
	if err != nil {
		return state, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if command == "begin" {
		return quarantine.BeginDir(s.DataDir, d, time.Now(), byOperator)
	}
	return quarantine.EndDir(s.DataDir)
}

func changeShared(ctx context.Context, s *settings.Settings, command string, d time.Duration) (state quarantine.State, err error) {
	st, err := app.OpenUsed(ctx, s)
	if err != nil {
		return state, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	// A quarantine where no manager was would protect nobody.
	n, err := st.Len(ctx, shard.Collection, "")
	if err == nil && n == 0 {
		err = settings.Usagef("--store-dsn: %v", store.ErrUnused)
	}
	if err != nil {
		return state, err
	}
	switch command {
	case "begin":
		return quarantine.Begin(ctx, st, d, byOperator)
	case "end":
		return quarantine.End(ctx, st)
	}
	return quarantine.Read(ctx, st)
}
