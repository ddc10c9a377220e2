// Command run is `make run`: it starts the manager, the payments upstream and the gate in Envoy, or in the gateway, prints
// what runs where, as which process, and what to paste into another terminal, and stops all of it on Ctrl-C.
//
//	run [--bin DIR] [--dir DIR] [--store wal|etcd] [--proxy envoy|gateway] [--mode body|headers] [--workers N] [--PROCESS-port N]...
//
// The manager's data stays in --dir, so what was executed before a restart is still known after it.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/oncegate/oncegate/examples/internal/stack"
)

func main() {
	// Also SIGPIPE: when nothing reads the output, the processes must still be stopped.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parse(ctx, args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		return 2
	}
	fmt.Fprintf(stdout, "proxy: %v\n", cfg.Proxy)
	s, err := stack.Start(ctx, cfg)
	if err != nil {
		if ctx.Err() != nil {
			return 0 // asked to stop before everything was up
		}
		fmt.Fprintf(stderr, "run: %v\n", err)
		if errors.Is(err, stack.ErrPortTaken) {
			fmt.Fprintln(stderr, "choose others with make run MANAGER_PORT=N MANAGER_ADMIN_PORT=N PAYMENTS_PORT=N PROXY_PORT=N PROXY_ADMIN_PORT=N")
		}
		return 1
	}
	io.WriteString(stdout, welcome(s, cfg, rand.Text()[:8]))

	code := 0
	if err := supervise(ctx, s, managerDown, stdout); err != nil {
		fmt.Fprintf(stderr, "run: %v\n", err)
		code = 1
	}
	fmt.Fprintln(stdout, "stopping")
	if err := s.Stop(); err != nil {
		fmt.Fprintf(stderr, "run: %v\n", err)
		code = 1
	}
	return code
}

// managerDown is how long a killed manager stays down: long enough to see what clients get then.
const managerDown = 10 * time.Second

// supervised is the part of a stack that supervise uses.
type supervised interface {
	Failed() <-chan error
	PIDs() map[string]int
	Restarts(role string) (restarts, atOnce bool)
	Restart(ctx context.Context, role string) error
}

// supervise returns when ctx ends, or with an error when a process has ended by itself. A manager or a member of etcd
// that was killed, which users are invited to try, is started again on its data after down, and a proxy at once.
func supervise(ctx context.Context, s supervised, down time.Duration, stdout io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	due := make(chan string)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.Failed():
			ended := (*stack.EndedError)(nil)
			if !errors.As(err, &ended) || ended.How != "signal: killed" {
				return err
			}
			role, wait := ended.Process, down
			restarts, atOnce := s.Restarts(role)
			if !restarts {
				return err
			}
			if atOnce {
				wait = 0
			}
			fmt.Fprintf(stdout, "the %s was killed; it is started again in %v\n", role, wait)
			time.AfterFunc(wait, func() {
				select {
				case due <- role:
				case <-ctx.Done():
				}
			})
		case role := <-due:
			if err := s.Restart(ctx, role); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			fmt.Fprintf(stdout, "the %s is back; processes: %s\n", role, processes(s.PIDs()))
		}
	}
}

// parse reads the command line. If it returns an error, it has printed what is wrong.
func parse(ctx context.Context, args []string, stderr io.Writer) (stack.Config, error) {
	var cfg stack.Config
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&cfg.BinDir, "bin", "build", "`folder` with what make build made")
	flags.StringVar(&cfg.Dir, "dir", "build/run", "`folder` for the manager's data, logs and the proxy's configuration")
	proxy := flags.String("proxy", "envoy", "`what` the gate runs in, envoy or gateway; the gateway also where there is no Envoy")
	flags.IntVar(&cfg.Workers, "workers", 2, "`number` of the proxy's workers, 1 to 64")
	flags.StringVar(&cfg.Mode, "mode", "body", "the gate's `mode`, body or headers")
	store := flags.String("store", "wal", "`where` the manager keeps its records, wal; or etcd: three members, and two managers before them")
	ports := []struct {
		port *int
		name string
		def  int
	}{
		{&cfg.Ports.Manager, "manager-port", 8090},
		{&cfg.Ports.ManagerAdmin, "manager-admin-port", 8091},
		{&cfg.Ports.Payments, "payments-port", 9000},
		{&cfg.Ports.Proxy, "proxy-port", 10000},
		{&cfg.Ports.ProxyAdmin, "proxy-admin-port", 10001},
	}
	for _, p := range ports {
		flags.IntVar(p.port, p.name, p.def, "`port` on 127.0.0.1; 0 for any that is free")
	}
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}

	bad := func(format string, args ...any) (stack.Config, error) {
		err := fmt.Errorf(format, args...)
		fmt.Fprintf(stderr, "run: %v\n", err)
		return cfg, err
	}
	if flags.NArg() > 0 {
		return bad("unexpected argument %q: it takes flags only", flags.Arg(0))
	}
	if cfg.Workers < 1 || cfg.Workers > 64 {
		return bad("--workers is %d, it must be from 1 to 64", cfg.Workers)
	}
	for _, p := range ports {
		if *p.port < 0 || *p.port > 65535 {
			return bad("--%s is %d, it must be from 0 to 65535", p.name, *p.port)
		}
	}
	if cfg.Mode != "body" && cfg.Mode != "headers" {
		return bad("--mode is %q, it must be body or headers", cfg.Mode)
	}
	if *store != "wal" && *store != "etcd" {
		return bad("--store is %q, it must be wal or etcd", *store)
	}
	cfg.Etcd = *store == "etcd"
	var err error
	if cfg.Proxy, err = stack.ChooseProxy(ctx, *proxy, cfg.BinDir); err != nil {
		return bad("%w", err)
	}
	if cfg.Etcd && cfg.Proxy.Name() != "envoy" {
		return bad("--store is \"etcd\", it needs Envoy, and the proxy is %s", cfg.Proxy)
	}
	return cfg, nil
}

// welcome says what runs where and what to try. key is a key that was not used before.
func welcome(s *stack.Stack, cfg stack.Config, key string) string {
	curl := fmt.Sprintf(`curl -i %s/payments -H 'Idempotency-Key: try-%s' -d '{"amount": 100}'`, s.ProxyURL(), key)
	metrics := "/metrics"
	if cfg.Proxy.Name() == "envoy" {
		metrics = "/stats/prometheus"
	}
	killed := "a killed manager is started again after 10 s; until then new keys get 503 and do not run."
	if cfg.Etcd {
		killed = "when one manager or member of etcd is killed, clients see latency, nothing else. It is started again after 10 s."
	}
	return fmt.Sprintf(`Running:
  %-9s %s   the gate (oncegate.wasm, %s mode) before payments; metrics: %s%s
  payments  %s    the upstream, whose work must not be done twice
  manager   %s    the ledger; its page: %s/ui/, metrics: %s/metrics
Processes: %s.
Try kill -9: %s
A killed proxy is started again at once, and a client that repeats its call gets the recorded answer.
Data, logs and the proxy's configuration are in %s.

Paste into another terminal: the first call, and its retry, which must get the same answer
  %s
  %s
and how often it was executed
  curl %s/executions

Ctrl-C stops all.
`, cfg.Proxy.Name(), s.ProxyURL(), cfg.Mode, s.ProxyAdminURL(), metrics, s.PaymentsURL(), s.ManagerURL(), s.ManagerAdminURL(), s.ManagerAdminURL(),
		processes(s.PIDs()), killed, filepath.Clean(cfg.Dir), curl, curl, s.PaymentsURL())
}

// processes lists the ids of processes by role.
func processes(pids map[string]int) string {
	var all []string
	for _, role := range slices.Sorted(maps.Keys(pids)) {
		all = append(all, fmt.Sprintf("%s %d", role, pids[role]))
	}
	return strings.Join(all, ", ")
}
