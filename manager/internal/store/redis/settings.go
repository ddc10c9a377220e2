package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

const (
	defaultCheckInterval = 10 * time.Second
	// checkTimeout bounds one check of the settings.
	checkTimeout = 5 * time.Second
)

// evictsError is the maxmemory-policy of a server that may evict records. It wraps no error, because the client library
// would show the wrapped error instead.
type evictsError string

func (e evictsError) Error() string {
	return fmt.Sprintf("redis store: maxmemory-policy is %q, must be noeviction: evicting a reservation would let its work run twice", string(e))
}

func evicts(err error) bool {
	var e evictsError
	return errors.As(err, &e)
}

// settings are the server's settings on which its guarantees depend. They are empty for a server that does not show
// them.
type settings struct {
	shown                                    bool
	maxmemoryPolicy, appendonly, appendfsync string
	minReplicas                              string // min-replicas-to-write
	waitAOF                                  bool   // the server has WAITAOF
	era                                      era    // empty for a server that does not show it
}

// readSettings asks the server. A server that refuses has hidden settings, which is not an error. An error means that
// there was no answer.
func readSettings(ctx context.Context, c goredis.Cmdable) (set settings, err error) {
	fields := map[string]*string{
		"maxmemory-policy": &set.maxmemoryPolicy, "appendonly": &set.appendonly, "appendfsync": &set.appendfsync,
		"min-replicas-to-write": &set.minReplicas,
	}
	answers := make(map[string]*goredis.MapStringStringCmd, len(fields))
	var waitAOF *goredis.SliceCmd
	var info *goredis.StringCmd
	_, err = c.Pipelined(ctx, func(p goredis.Pipeliner) error {
		for name := range fields {
			answers[name] = p.ConfigGet(ctx, name)
		}
		waitAOF = goredis.NewSliceCmd(ctx, "COMMAND", "INFO", "WAITAOF")
		_ = p.Process(ctx, waitAOF)
		info = p.Info(ctx, "replication")
		return nil
	})
	if err != nil && hidden(err) && (err == waitAOF.Err() || err == info.Err()) {
		err = nil // the server does not list its commands; WAIT is as old as any that is in use
	}
	set.era = eraOf(info)
	switch {
	case err != nil && hidden(err):
		return settings{era: set.era}, nil
	case err != nil:
		return settings{}, err
	}
	for name, to := range fields {
		*to = answers[name].Val()[name]
	}
	set.shown = set.maxmemoryPolicy != ""
	set.waitAOF = len(waitAOF.Val()) == 1 && waitAOF.Val()[0] != nil
	return set, nil
}

// hidden reports whether the server refuses to show its settings, to this user or to all. Otherwise it is not ready to
// answer.
func hidden(err error) bool {
	var refusal goredis.Error
	if !errors.As(err, &refusal) {
		return false
	}
	text := refusal.Error()
	return strings.HasPrefix(text, "NOPERM") || strings.Contains(text, "unknown command") || strings.Contains(text, "unknown subcommand")
}

// unsafe returns an error for a server that may evict records.
func (set settings) unsafe() error {
	if !set.shown || set.maxmemoryPolicy == "noeviction" {
		return nil
	}
	return evictsError(set.maxmemoryPolicy)
}

// durable reports whether acknowledged writes survive a crash.
func (set settings) durable() bool { return set.appendonly == "yes" && set.appendfsync == "always" }

func (set settings) warn(log *slog.Logger) {
	switch {
	case !set.shown:
		log.Warn("redis does not show its settings (CONFIG GET): make sure that maxmemory-policy is noeviction and appendfsync is always")
	case !set.durable():
		log.Warn("redis may lose acknowledged transactions in a crash: it needs appendonly yes and appendfsync always",
			"appendonly", set.appendonly, "appendfsync", set.appendfsync)
	}
}

// replicas is how many replicas must have a write before it is acknowledged.
func (set settings) replicas() int {
	n, _ := strconv.Atoi(set.minReplicas)
	return n
}

var errReplica = errors.New("redis store: the server is a replica, must be the primary")

// admit checks the settings before a new connection is used: after a failover or a restart another server may answer. A
// replica is refused, because its records may be old.
func admit(ctx context.Context, c *goredis.Conn) error {
	set, err := readSettings(ctx, c)
	if err != nil {
		return err
	}
	if set.era.replica() {
		return errReplica
	}
	return set.unsafe()
}

// guard checks the settings while the store is open: the server's operator may change them.
type guard struct {
	problem atomic.Pointer[error]
	set     atomic.Pointer[settings] // as seen last
}

// run begins with the settings that Open found.
func (g *guard) run(ctx context.Context, c goredis.Cmdable, o Options, last settings) {
	tick := time.NewTicker(o.CheckInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		set, err := look(ctx, c)
		switch {
		case err == nil:
			err = set.unsafe()
		case !evicts(err): // the calls report a server that does not answer
			continue
		}
		if err != nil {
			problem := unavailable(err)
			if g.problem.Swap(&problem) == nil {
				o.Logger.Error("redis is not used as long as it may evict records", "error", err.Error())
			}
			continue
		}
		g.set.Store(&set)
		if g.problem.Swap(nil) != nil {
			o.Logger.Info("redis is used again")
		}
		if set != last {
			set.warn(o.Logger)
		}
		last = set
	}
}

func look(ctx context.Context, c goredis.Cmdable) (settings, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return readSettings(ctx, c)
}

// err returns why the server must not be used now, as an error of the store.
func (g *guard) err() error {
	if p := g.problem.Load(); p != nil {
		return *p
	}
	return nil
}
