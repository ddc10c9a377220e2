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

// heapFloor is what the collector takes for live in addition to what is. Where the records are in a server, little is live,
// and Go would collect after each few megabytes. Nothing touches these bytes, so the system gives no memory for them; the
// garbage that gathers meanwhile takes about as much.
const heapFloor = 64 << 20

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
	}
	if err != nil {
		return err
	}
	s.Unknown = settings.UnknownVariables(env.Environ)
	if chosen, _ := env.Getenv("GOMAXPROCS"); chosen == "" && runtime.GOMAXPROCS(0) == 1 {
		// On one core, a sync of the log holds up all else until the runtime notices that the
		// thread is blocked. A second thread of Go code takes over at once.
		runtime.GOMAXPROCS(2)
	}
	percent, _ := env.Getenv("GOGC")
	limit, _ := env.Getenv("GOMEMLIMIT")
	if percent == "" && limit == "" {
		floor := make([]byte, heapFloor)
		defer runtime.KeepAlive(floor)
	}
	return app.Run(ctx, app.Options{Settings: s, Version: version(env.Version), Log: env.Stderr, Hangup: hangup})
}
