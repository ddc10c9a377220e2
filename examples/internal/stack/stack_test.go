package stack

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/oncegate/oncegate/envoy/envoybin"
)

// TestMain makes the test binary play the three programs: under the name of one of them it serves what Start waits for,
// with the misbehaviour that the environment asks of it.
func TestMain(m *testing.M) {
	switch name := filepath.Base(os.Args[0]); name {
	case "oncegate", "gateway", "payments":
		if name == "oncegate" {
			name = "manager"
		}
		if err := fake(name, os.Getenv("FAKE_"+strings.ToUpper(name))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func fake(name, behaviour string) error {
	args := os.Args[1:]
	if name == "manager" {
		if len(args) == 0 || args[0] != "serve" {
			return fmt.Errorf("manager called with %q", args)
		}
		args = args[1:]
	}
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	listen := flags.String("listen", "", "")
	admin := flags.String("admin", "", "")
	for _, other := range []string{"data-dir", "wasm", "config", "upstream", "cluster", "workers"} {
		flags.String(other, "", "")
	}
	flags.Bool("allow-on-headers-stop-iteration", false, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	// Every start leaves a line in the log, by which tests count them.
	fmt.Fprintln(os.Stderr, "fake", name, "started")

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	switch behaviour {
	case "exits at once":
		return errors.New("no luck today")
	case "never answers":
		<-stop
		return nil
	case "leaves a child":
		child := exec.Command("sleep", "1000")
		if err := child.Start(); err != nil {
			return err
		}
		fmt.Fprintln(os.Stderr, "child", child.Process.Pid)
	}
	failed := make(chan error, 2)
	for _, a := range []string{*listen, *admin} { // one after the other: the second shows that both listen
		if a != "" {
			l, err := net.Listen("tcp", a)
			if err != nil {
				return err
			}
			go func() {
				failed <- http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if behaviour == "exits when asked for /die" && r.URL.Path == "/die" {
						os.Exit(3)
					}
					io.WriteString(w, name)
				}))
			}()
		}
	}
	for {
		select {
		case err := <-failed:
			return err
		case <-stop:
			if behaviour == "ignores SIGTERM" {
				continue
			}
			if behaviour == "ends badly" {
				return errors.New("could not save")
			}
			return nil
		}
	}
}

// config is for a stack of fakes in their own folder, on free ports.
func config(t *testing.T) Config {
	t.Helper()
	// The race detector's runtime otherwise lingers for a second at every exit of a fake.
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"oncegate", "gateway", "payments"} {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "oncegate.wasm"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return Config{BinDir: dir, Dir: filepath.Join(dir, "run"), Plugin: map[string]any{"max_entries": 4096}}
}

func start(t *testing.T, cfg Config) *Stack {
	t.Helper()
	s, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop() })
	return s
}

// gone reports whether nothing listens on the port any more.
func gone(t *testing.T, port int) bool {
	t.Helper()
	l, err := net.Listen("tcp", address(port))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

func logOf(t *testing.T, cfg Config, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(cfg.Dir, name+".log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(b)
}

func TestStartAndStop(t *testing.T) {
	cfg := config(t)
	s := start(t, cfg)
	for _, url := range []string{s.ProxyURL(), s.PaymentsURL(), "http://" + address(s.Ports.ManagerAdmin)} {
		if err := get(t.Context(), url); err != nil {
			t.Errorf("after Start: %v", err)
		}
	}
	b, err := os.ReadFile(filepath.Join(cfg.Dir, "plugin.json"))
	if err != nil || !strings.Contains(string(b), `"mode":"body"`) || !strings.Contains(string(b), `"max_entries":4096`) {
		t.Errorf("the gate's configuration: %q, %v", b, err)
	}
	if err := s.Stop(); err != nil {
		t.Errorf("Stop: %v", err)
	}
	for _, port := range []int{s.Ports.Proxy, s.Ports.ProxyAdmin, s.Ports.Manager, s.Ports.ManagerAdmin, s.Ports.Payments} {
		if !gone(t, port) {
			t.Errorf("port %d is still in use after Stop", port)
		}
	}
	if err := s.Stop(); err != nil {
		t.Errorf("a second Stop: %v", err)
	}
	select {
	case err := <-s.Failed():
		t.Errorf("stopping counts as a failure: %v", err)
	default:
	}
}

func TestKilledManagerComesBackOnItsPort(t *testing.T) {
	cfg := config(t)
	s := start(t, cfg)
	port := s.Ports.Manager
	s.KillManager()
	if !gone(t, port) {
		t.Fatal("the manager still listens after it was killed")
	}
	s.KillManager() // nothing to kill: nothing happens
	if err := s.StartManager(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.Ports.Manager != port || gone(t, port) {
		t.Errorf("the manager is not back on port %d", port)
	}
	if n := strings.Count(logOf(t, cfg, "manager"), "fake manager started"); n != 2 {
		t.Errorf("the log has %d starts, want 2", n)
	}
	select {
	case err := <-s.Failed():
		t.Errorf("the kill counts as a failure: %v", err)
	default:
	}
}

func TestStartReportsTakenPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cfg := config(t)
	cfg.Ports.Proxy = l.Addr().(*net.TCPAddr).Port
	s, err := Start(t.Context(), cfg)
	if err == nil {
		_ = s.Stop()
		t.Fatal("Start succeeded on a port that is taken")
	}
	want := fmt.Sprintf("port taken: %d, for the proxy", cfg.Ports.Proxy)
	if !errors.Is(err, ErrPortTaken) || !strings.Contains(err.Error(), want) {
		t.Errorf("error %q, want ErrPortTaken that says %q", err, want)
	}
	if log := logOf(t, cfg, "payments"); log != "" {
		t.Errorf("payments was started before the ports were looked at: %s", log)
	}
}

func TestStartReportsMissingBinary(t *testing.T) {
	cfg := config(t)
	if err := os.Remove(filepath.Join(cfg.BinDir, "oncegate.wasm")); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "oncegate.wasm") ||
		!strings.Contains(err.Error(), "make build") {
		t.Errorf("error %v, want it to name the file and the remedy", err)
	}
}

// make run builds the gateway only where it runs.
func TestEnvoyNeedsNoGateway(t *testing.T) {
	cfg := config(t)
	if err := os.Remove(filepath.Join(cfg.BinDir, "gateway")); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "gateway: no such file") {
		t.Errorf("as the proxy: %v", err)
	}
	cfg.Proxy = Proxy{Envoy: envoybin.Binary{Path: filepath.Join(t.TempDir(), "no-envoy")}}
	if _, err := Start(t.Context(), cfg); err == nil || strings.Contains(err.Error(), "gateway: no such file") {
		t.Errorf("with Envoy as the proxy: %v", err)
	}
}

func TestStartStopsAllWhenOneEnds(t *testing.T) {
	t.Setenv("FAKE_GATEWAY", "exits at once")
	cfg := config(t)
	var chosen Stack
	if err := chosen.takePorts(); err != nil {
		t.Fatal(err)
	}
	defer chosen.Stop()
	cfg.Ports = chosen.Ports
	_, err := Start(t.Context(), cfg)
	if err == nil {
		t.Fatal("Start succeeded without a gateway")
	}
	for _, want := range []string{"the gateway ended by itself (exit status 1)", "no luck today"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q, want it to contain %q", err, want)
		}
	}
	if !gone(t, cfg.Ports.Manager) || !gone(t, cfg.Ports.Payments) {
		t.Error("the other processes were left running")
	}
}

func TestStartGivesUpWithItsContext(t *testing.T) {
	t.Setenv("FAKE_MANAGER", "never answers")
	cfg := config(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		_, err := Start(ctx, cfg)
		failed <- err
	}()
	for !strings.Contains(logOf(t, cfg, "manager"), "started") {
	}
	cancel()
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "the manager does not answer") {
		t.Errorf("error %v, want that the manager does not answer", err)
	}
}

func TestFailedTellsOfAnUnexpectedEnd(t *testing.T) {
	t.Setenv("FAKE_GATEWAY", "exits when asked for /die")
	s := start(t, config(t))
	if err := get(t.Context(), s.ProxyURL()+"/die"); err == nil {
		t.Fatal("the gateway did not die")
	}
	err := <-s.Failed()
	if !strings.Contains(err.Error(), "the gateway ended by itself (exit status 3)") {
		t.Errorf("error %q, want it to name the gateway and its exit", err)
	}
	if ended := (*EndedError)(nil); !errors.As(err, &ended) || ended.Process != "gateway" || ended.How != "exit status 3" {
		t.Errorf("error %#v, want an EndedError of the gateway", err)
	}
}

func TestStopReportsABadEnd(t *testing.T) {
	t.Setenv("FAKE_MANAGER", "ends badly")
	s := start(t, config(t))
	if err := s.Stop(); err == nil || !strings.Contains(err.Error(), "the manager did not end well: exit status 1") {
		t.Errorf("Stop: %v, want it to say how the manager ended", err)
	}
}

func TestStopKillsWhatIgnoresSIGTERM(t *testing.T) {
	t.Setenv("FAKE_MANAGER", "ignores SIGTERM")
	s := start(t, config(t))
	s.manager.grace = 1
	if err := s.Stop(); err == nil || !strings.Contains(err.Error(), "the manager did not end within 1ns of SIGTERM and was killed") {
		t.Errorf("Stop: %v, want that the manager was killed", err)
	}
	if !gone(t, s.Ports.Manager) {
		t.Error("the manager still listens")
	}
}

func TestStopTakesChildrenAlong(t *testing.T) {
	t.Setenv("FAKE_PAYMENTS", "leaves a child")
	cfg := config(t)
	s := start(t, cfg)
	_, after, found := strings.Cut(logOf(t, cfg, "payments"), "child ")
	if !found {
		t.Fatal("payments has no child")
	}
	pid, err := strconv.Atoi(strings.TrimSpace(after))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil {
		t.Errorf("Stop: %v", err)
	}
	// The orphan is a zombie until init collects it; state Z is as dead as gone.
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return
		}
		_, state, _ := strings.Cut(string(stat), ") ")
		if strings.HasPrefix(state, "Z") {
			return
		}
		if t.Context().Err() != nil {
			t.Fatal("the child lives")
		}
	}
}

// TestPortsAreChosenOnce: the ports of etcd are chosen after those of the other programs, which do not listen yet.
func TestPortsAreChosenOnce(t *testing.T) {
	for range 3000 {
		s := &Stack{cfg: Config{Dir: t.TempDir()}, cluster: &cluster{}}
		if err := errors.Join(s.takePorts(), s.clusterPorts()); err != nil {
			t.Fatal(err)
		}
		c, p := s.cluster, s.Ports
		all := slices.Concat(c.Client[:], c.Peer[:], []int{c.API, c.Admin, p.Manager, p.ManagerAdmin, p.Payments, p.Proxy, p.ProxyAdmin})
		for _, port := range s.held {
			port.Release()
		}
		slices.Sort(all)
		if distinct := slices.Compact(slices.Clone(all)); len(distinct) < len(all) {
			t.Fatalf("one port for two programs: %v", all)
		}
	}
}
