package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/hostsim"
)

const (
	maxModuleBytes = 64 << 20
	maxConfigBytes = 1 << 20
	maxClusters    = 256     // two lists of 64 shards, and more
	maxCalls       = 1 << 16 // of a cluster
)

// options are the command line, checked.
type options struct {
	module, config  []byte
	codeCache       string
	listen, admin   string
	upstream        string
	clusters        map[string]string
	environment     map[string]string
	workers         int
	stopIteration   bool
	bufferLimit     int
	vmID, plugin    string
	failure         hostsim.FailurePolicy
	idleTimeout     time.Duration
	upstreamTimeout time.Duration
	connectTimeout  time.Duration
	drainTimeout    time.Duration
	maxClients      int
	maxConnections  int
	maxPending      int
	maxHeaderBytes  int
	logLevel        slog.Level
}

// parseOptions reads and checks the command line and the files it names. An error names the flag, the value and what is
// allowed. flag.ErrHelp means that the user asked for the usage, which has been written to usage.
func parseOptions(args []string, usage io.Writer) (*options, error) {
	var (
		o          = options{clusters: map[string]string{}, environment: map[string]string{}}
		wasm, conf string
		failure    string
	)
	fs := flag.NewFlagSet("gateway", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&wasm, "wasm", "", "the filter's module, a `file`")
	fs.StringVar(&o.codeCache, "code-cache", "", "a `directory` that keeps the module's machine code for the next start; empty: none")
	fs.StringVar(&conf, "config", "", "the filter's configuration, a `file`; empty: none")
	fs.StringVar(&o.listen, "listen", "", "`address` to serve, host:port; port 0 takes a free one")
	fs.StringVar(&o.upstream, "upstream", "", "`address` behind the filter, host:port")
	fs.Func("cluster", "`NAME=host:port` that the filter may call; h2c://host:port speaks HTTP/2, which gRPC streams need; repeatable", o.setCluster)
	fs.Func("env", "`NAME` of an environment variable that the filter may see, as in Envoy's host_env_keys; repeatable; without effect if there is none", o.setEnv)
	fs.StringVar(&o.admin, "admin", "", "`address` of the admin listener; empty: none")
	fs.IntVar(&o.workers, "workers", min(runtime.GOMAXPROCS(0), 256), "number of workers, each with its own VM, 1 to 256")
	fs.BoolVar(&o.stopIteration, "allow-on-headers-stop-iteration", false, "as Envoy's PluginConfig field: a pause on headers still delivers the body")
	fs.IntVar(&o.bufferLimit, "buffer-limit", 1<<20, "`bytes` buffered per stream and direction, 1024 to 1073741824")
	fs.StringVar(&o.vmID, "vm-id", "oncegate", "separates shared data and queues")
	fs.StringVar(&o.plugin, "plugin-name", "oncegate", "the property plugin_name")
	fs.StringVar(&failure, "failure-policy", "reload", "after a trap: closed, open or reload")
	fs.DurationVar(&o.idleTimeout, "idle-timeout", 5*time.Minute, "ends a stream without traffic for this long, and an unused client connection; 1s to 24h")
	fs.DurationVar(&o.upstreamTimeout, "upstream-timeout", 15*time.Second, "from the end of the request to the end of the answer; 0: none; at most 24h")
	fs.DurationVar(&o.connectTimeout, "connect-timeout", 5*time.Second, "to connect to upstream or a cluster; 1ms to 1h")
	fs.DurationVar(&o.drainTimeout, "drain-timeout", 10*time.Second, "for running requests at shutdown, and then for what the filter has left to deliver; 0 to 1h")
	fs.IntVar(&o.maxClients, "max-clients", 10000, "client connections, 1 to 1000000")
	fs.IntVar(&o.maxConnections, "max-connections", 1024, "requests under way to upstream and to each cluster, 1 to 65536")
	fs.IntVar(&o.maxPending, "max-pending", 1024, "requests that wait for one of those, 1 to 65536")
	fs.IntVar(&o.maxHeaderBytes, "max-header-bytes", 60<<10, "`bytes` of a header map, 8192 to 1048576")
	fs.TextVar(&o.logLevel, "log-level", slog.LevelInfo, "DEBUG, INFO, WARN or ERROR")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(usage, "usage: gateway --wasm F --config F --listen A --upstream A [--cluster NAME=A]... [flags]")
			fs.SetOutput(usage)
			fs.PrintDefaults()
		}
		return nil, err
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q: everything is a flag", fs.Arg(0))
	}

	policies := map[string]hostsim.FailurePolicy{
		"closed": hostsim.FailClosed, "open": hostsim.FailOpen, "reload": hostsim.FailReload,
	}
	var ok bool
	if o.failure, ok = policies[failure]; !ok {
		return nil, fmt.Errorf("--failure-policy %q must be closed, open or reload", failure)
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	var err error
	if wasm == "" {
		return nil, errors.New("--wasm is missing: name the filter's module")
	}
	if o.module, err = readFile("--wasm", wasm, maxModuleBytes); err != nil {
		return nil, err
	}
	if conf != "" {
		if o.config, err = readFile("--config", conf, maxConfigBytes); err != nil {
			return nil, err
		}
	}
	return &o, nil
}

// check validates what needs no file.
func (o *options) check() error {
	for _, a := range []struct {
		flag, value    string
		optional, bind bool
	}{
		{"--listen", o.listen, false, true},
		{"--upstream", o.upstream, false, false},
		{"--admin", o.admin, true, true},
	} {
		if a.value == "" && a.optional {
			continue
		}
		if err := checkAddress(a.flag, a.value, a.bind); err != nil {
			return err
		}
	}
	for _, n := range []struct {
		flag        string
		value       int
		least, most int
	}{
		{"--workers", o.workers, 1, 256},
		{"--buffer-limit", o.bufferLimit, 1 << 10, 1 << 30},
		{"--max-clients", o.maxClients, 1, 1e6},
		{"--max-connections", o.maxConnections, 1, maxCalls},
		{"--max-pending", o.maxPending, 1, maxCalls},
		{"--max-header-bytes", o.maxHeaderBytes, 8 << 10, 1 << 20},
	} {
		if n.value < n.least || n.value > n.most {
			return fmt.Errorf("%s %d must be %d to %d", n.flag, n.value, n.least, n.most)
		}
	}
	for _, d := range []struct {
		flag        string
		value       time.Duration
		least, most time.Duration
	}{
		{"--idle-timeout", o.idleTimeout, time.Second, 24 * time.Hour},
		{"--upstream-timeout", o.upstreamTimeout, 0, 24 * time.Hour},
		{"--connect-timeout", o.connectTimeout, time.Millisecond, time.Hour},
		{"--drain-timeout", o.drainTimeout, 0, time.Hour},
	} {
		if d.value < d.least || d.value > d.most {
			return fmt.Errorf("%s %v must be %v to %v", d.flag, d.value, d.least, d.most)
		}
	}
	for _, s := range []struct{ flag, value string }{{"--vm-id", o.vmID}, {"--plugin-name", o.plugin}} {
		if len(s.value) > 255 {
			return fmt.Errorf("%s has %d bytes, at most 255 are allowed", s.flag, len(s.value))
		}
	}
	return nil
}

// checkAddress checks host:port with a name or an IP address as host. An address to listen on may omit the host and may have port 0.
func checkAddress(flag, value string, bind bool) error {
	if value == "" {
		return fmt.Errorf("%s is missing: give host:port", flag)
	}
	host, port, err := net.SplitHostPort(value)
	if err != nil {
		return fmt.Errorf("%s %q must be host:port", flag, value)
	}
	if host == "" && !bind {
		return fmt.Errorf("%s %q must name a host", flag, value)
	}
	if _, err := netip.ParseAddr(host); err != nil && strings.ContainsFunc(host, notOfName) {
		return fmt.Errorf("%s %q: the host must be a name or an IP address", flag, value)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 || n == 0 && !bind {
		return fmt.Errorf("%s %q: the port must be a number up to 65535", flag, value)
	}
	return nil
}

// readFile reads a regular file of at most limit bytes.
func readFile(flag, name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%s %q is larger than %d bytes", flag, name, limit)
	}
	if len(b) == 0 {
		return nil, fmt.Errorf("%s %q is empty", flag, name)
	}
	return b, nil
}

// notOfName reports whether the name of a host cannot have r.
func notOfName(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-._", r))
}

// setCluster takes one --cluster NAME=host:port, with http2Scheme before the address or without.
func (o *options) setCluster(v string) error {
	name, addr, ok := strings.Cut(v, "=")
	if !ok || name == "" || len(name) > 255 {
		return errors.New("must be NAME=host:port or NAME=h2c://host:port, with a name of 1 to 255 bytes")
	}
	if _, dup := o.clusters[name]; dup {
		return fmt.Errorf("cluster %q is given twice", name)
	}
	if len(o.clusters) == maxClusters {
		return fmt.Errorf("more than %d clusters", maxClusters)
	}
	if err := checkAddress("address", strings.TrimPrefix(addr, http2Scheme), false); err != nil {
		return fmt.Errorf("%w; allowed are host:port, and h2c://host:port for HTTP/2", err)
	}
	o.clusters[name] = addr
	return nil
}

// setEnv takes one --env NAME, with the value of the process's environment. The command line has names only, because other
// users of the machine see it.
func (o *options) setEnv(name string) error {
	if name == "" || strings.Contains(name, "=") {
		return errors.New("must be the NAME of a variable, without a value")
	}
	if value, ok := os.LookupEnv(name); ok {
		o.environment[name] = value
	}
	return nil
}
