package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/oncegate/oncegate/manager/managertest/ports"
)

// readyTimeout bounds how long one process may take until it answers.
const readyTimeout = 60 * time.Second

// ErrPortTaken: another program listens on a port that the configuration names. The error of Start that wraps it says
// which.
var ErrPortTaken = errors.New("port taken")

// Config says what to run and where. BinDir and Dir are required.
type Config struct {
	// BinDir holds what `make build` makes: manager, gateway, payments, oncegate.wasm.
	BinDir string
	// Dir holds the manager's data (Dir/data), the log files, Envoy's access log (Dir/access.log) and the proxy's
	// configuration. It is created if missing. Its content is kept, so a second run knows the first one's keys.
	Dir string
	// Etcd makes it three members of etcd, two managers that share it, and Envoy. It takes etcd from PATH, and needs
	// Envoy as the Proxy, which repeats a call that a manager did not answer.
	Etcd bool
	// Ports to listen on, on 127.0.0.1; 0 picks a free one.
	Ports Ports
	// Proxy is the proxy that runs the gate. The zero value is the gateway.
	Proxy Proxy
	// Workers is the number of the proxy's workers; 0 means 2.
	Workers int
	// Mode is the gate's, body or headers; "" means body. It selects one of the configurations of package envoy, whose
	// filter configuration the gateway gets as well.
	Mode string
	// Plugin has fields of the filter's configuration that replace the published ones. The manager's cluster must stay
	// oncegate_manager.
	Plugin map[string]any
}

// Ports are the ports of a stack on 127.0.0.1.
type Ports struct {
	Manager, ManagerAdmin int
	Payments              int
	Proxy, ProxyAdmin     int
}

// Stack is a set of running processes. Its methods must not be called concurrently, except Failed.
type Stack struct {
	// Ports are the ports in use, with the free ones that were picked for 0.
	Ports Ports

	cfg    Config
	failed chan error
	held   []*ports.Port // until Stop

	payments, manager, proxy *process
	cluster                  *cluster // nil without etcd
}

// Start starts the processes and returns when all of them answer. If it fails, nothing is left running. It reports a
// port that is taken before it starts anything.
func Start(ctx context.Context, cfg Config) (*Stack, error) {
	cfg.Workers = cmp.Or(cfg.Workers, 2)
	cfg.Mode = cmp.Or(cfg.Mode, "body")
	programs := []string{"oncegate", "payments", "oncegate.wasm"}
	if !cfg.Proxy.isEnvoy() {
		programs = append(programs, "gateway") // make run builds it only where it runs
	}
	for _, file := range programs {
		if _, err := os.Stat(filepath.Join(cfg.BinDir, file)); err != nil {
			return nil, fmt.Errorf("%w: run `make build` first", err)
		}
	}
	if err := os.MkdirAll(filepath.Join(cfg.Dir, "data"), 0o755); err != nil {
		return nil, err
	}
	// Room for the end of every process, so that none blocks: few starts are under way at a time.
	s := &Stack{Ports: cfg.Ports, cfg: cfg, failed: make(chan error, 16)}
	if err := s.takePorts(); err != nil {
		_ = s.Stop()
		return nil, err
	}
	starts := []func(context.Context) error{s.startPayments, s.StartManager, s.startProxy}
	if cfg.Etcd {
		if !cfg.Proxy.isEnvoy() {
			return nil, errors.New("managers that share etcd need Envoy before them")
		}
		starts = []func(context.Context) error{s.startPayments, s.startEtcd, s.StartManager, s.startSecond, s.startProxy}
	}
	for _, start := range starts {
		if err := start(ctx); err != nil {
			// The first error matters; that a half-started process ended badly adds nothing.
			_ = s.Stop()
			return nil, err
		}
	}
	return s, nil
}

// Failed receives an *EndedError when a process ended by itself.
func (s *Stack) Failed() <-chan error { return s.failed }

// ProxyURL is the URL for clients' requests.
func (s *Stack) ProxyURL() string { return "http://" + address(s.Ports.Proxy) }

// ProxyAdminURL is the proxy's admin listener.
func (s *Stack) ProxyAdminURL() string { return "http://" + address(s.Ports.ProxyAdmin) }

// PaymentsURL is the URL of the upstream itself, without the gate.
func (s *Stack) PaymentsURL() string { return "http://" + address(s.Ports.Payments) }

// ManagerURL is the manager's API, for gates and clients.
func (s *Stack) ManagerURL() string { return "http://" + address(s.Ports.Manager) }

// ManagerAdminURL is the manager's admin listener.
func (s *Stack) ManagerAdminURL() string { return "http://" + address(s.Ports.ManagerAdmin) }

// PIDs are the ids of the running processes by role: manager, proxy, payments; with etcd manager-2, etcd-1, etcd-2, etcd-3.
func (s *Stack) PIDs() map[string]int {
	pids := make(map[string]int)
	all := map[string]*process{"manager": s.manager, "proxy": s.proxy, "payments": s.payments}
	if s.cluster != nil {
		all[secondManager] = s.cluster.second
		for i, p := range s.cluster.etcd {
			all[memberName(i)] = p
		}
	}
	for role, p := range all {
		if p != nil {
			pids[role] = p.cmd.Process.Pid
		}
	}
	return pids
}

// Stop stops the running processes, those closest to the clients first. It returns the joined errors of processes that
// did not end well.
func (s *Stack) Stop() error {
	var errs []error
	if s.proxy != nil && s.cfg.Proxy.isEnvoy() {
		s.drainEnvoy()
	}
	ends := []**process{&s.proxy, &s.manager, &s.payments}
	if s.cluster != nil {
		ends = append(ends, &s.cluster.second)
	}
	for _, p := range ends {
		if *p != nil {
			errs = append(errs, (*p).stop())
			*p = nil
		}
	}
	s.killEtcd()
	for _, port := range s.held {
		port.Release()
	}
	s.held = nil
	return errors.Join(errs...)
}

// KillManager kills the manager as a crash would, with SIGKILL.
func (s *Stack) KillManager() {
	if s.manager != nil {
		s.manager.kill()
		s.manager = nil
	}
}

// StartManager starts the manager on its data and waits until it is ready.
func (s *Stack) StartManager(ctx context.Context) error {
	var err error
	s.manager, err = s.start(ctx, "manager", "oncegate", append([]string{
		"serve",
		"--listen", address(s.Ports.Manager),
		"--admin", address(s.Ports.ManagerAdmin),
	}, s.storeArgs()...), s.ManagerAdminURL()+"/readyz")
	return err
}

func (s *Stack) startPayments(ctx context.Context) error {
	var err error
	s.payments, err = s.start(ctx, "payments", "payments", []string{"--listen", address(s.Ports.Payments)}, s.PaymentsURL()+"/healthz")
	return err
}

// start runs a program of BinDir in a role and waits until ready answers 200. If the process runs, it is returned even with an
// error, so that Stop finds it.
func (s *Stack) start(ctx context.Context, role, name string, args []string, ready string) (*process, error) {
	log := s.logPath(role)
	return s.launch(ctx, program{name: role, path: filepath.Join(s.cfg.BinDir, name), args: args, logPath: log, outPath: log}, ready)
}

// launch is start for any program.
func (s *Stack) launch(ctx context.Context, what program, ready string) (*process, error) {
	p, err := startProcess(what, s.surprise)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return p, p.waitReady(ctx, func(ctx context.Context) error { return get(ctx, ready) })
}

// surprise takes the error of a process that ended by itself.
func (s *Stack) surprise(err error) {
	select {
	case s.failed <- err:
	default: // an earlier end has not been handled yet, and will be
	}
}

func (s *Stack) logPath(name string) string { return filepath.Join(s.cfg.Dir, name+".log") }

// get succeeds when url answers 200 within a second.
func get(ctx context.Context, url string) error {
	_, err := ask(ctx, http.MethodGet, url)
	return err
}

// takePorts replaces every 0 of Ports by a free port, and holds all ports until Stop. It reports other ports that are
// taken.
func (s *Stack) takePorts() error {
	return s.hold(ports.Hold, []programPort{
		{&s.Ports.Manager, "the manager"},
		{&s.Ports.ManagerAdmin, "the manager's admin listener"},
		{&s.Ports.Payments, "payments"},
		{&s.Ports.Proxy, "the proxy"},
		{&s.Ports.ProxyAdmin, "the proxy's admin listener"},
	})
}

// programPort is a port and the program that it is for. 0 means a free one.
type programPort struct {
	number *int
	what   string
}

// hold holds the ports until Stop, so that no two are the same, and a program that was killed gets its port again.
func (s *Stack) hold(free func() (*ports.Port, error), all []programPort) error {
	for _, p := range all {
		hold := free
		if *p.number != 0 {
			hold = func() (*ports.Port, error) { return ports.HoldNumber(*p.number) }
		}
		port, err := hold()
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("%w: %d, for %s", ErrPortTaken, *p.number, p.what)
		}
		if err != nil {
			return fmt.Errorf("port %d, for %s: %w", *p.number, p.what, err)
		}
		s.held = append(s.held, port)
		*p.number = port.Number
	}
	return nil
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
