package cli

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/oncegate/oncegate/manager/internal/app"
	"github.com/oncegate/oncegate/manager/internal/settings"
)

// serve is "oncegate serve". It returns nil after ctx ended and everything was
// shut down in order.
func serve(ctx context.Context, env Environment, args []string) error {
	// First of all, and never undone: SIGHUP asks a manager to read files again.
	// It must not end one that is still starting, or that has nothing to read.
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	s, err := settings.Parse(env.Getenv, args)
	if errors.Is(err, flag.ErrHelp) {
		settings.Help(env.Stdout)
		return nil
	}
	if err != nil {
		return err
	}
	if chosen, _ := env.Getenv("GOMAXPROCS"); chosen == "" && runtime.GOMAXPROCS(0) == 1 {
		// On one core, a sync of the log holds up all else until the runtime notices that the
		// thread is blocked. A second thread of Go code takes over at once.
		runtime.GOMAXPROCS(2)
	}
	return app.Run(ctx, app.Options{Settings: s, Version: version(env.Version), Log: env.Stderr, Hangup: hangup})
}
