package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/gateway/internal/proxy"
)

const (
	exitOK    = 0
	exitFail  = 1
	exitUsage = 2

	// requestEndTimeout bounds the end of requests whose connections were closed.
	requestEndTimeout = 10 * time.Second
	// headerTimeout bounds how long a client may take to send its headers.
	headerTimeout = 60 * time.Second
)

func main() {
	// The first signal drains, the second one cuts.
	drain, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	cut, cancelCut := context.WithCancel(context.Background())
	defer cancelCut()
	go func() {
		<-drain.Done()
		again := make(chan os.Signal, 1)
		signal.Notify(again, syscall.SIGTERM, syscall.SIGINT)
		<-again
		cancelCut()
	}()
	os.Exit(run(drain, cut, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the whole program. It drains when drain ends and stops draining when cut ends. It returns the exit code.
func run(drain, cut context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parseOptions(args, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		return complain(stderr, exitUsage, err)
	}
	logger := slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: o.logLevel}))
	guest := hostsim.Wasm(o.module)
	if o.codeCache != "" {
		if guest, err = hostsim.CachedWasm(o.module, o.codeCache); err != nil {
			return complain(stderr, exitUsage, fmt.Errorf("--code-cache %q: %w", o.codeCache, err))
		}
	}
	g, err := start(drain, o, guest, logger)
	if err != nil {
		var bad *inputError
		if errors.As(err, &bad) {
			return complain(stderr, exitUsage, err)
		}
		return complain(stderr, exitFail, err)
	}
	return g.serve(drain, cut)
}

// complain writes one line.
func complain(w io.Writer, code int, err error) int {
	fmt.Fprintln(w, "gateway: "+strings.Join(strings.Fields(err.Error()), " "))
	return code
}

// inputError marks an error that the user must fix: in the module or its configuration.
type inputError struct{ err error }

func (e *inputError) Error() string { return e.err.Error() }
func (e *inputError) Unwrap() error { return e.err }

// gateway is the running program.
type gateway struct {
	o        *options
	log      *slog.Logger
	host     *hostsim.Host
	clusters []*hostsim.HTTPCluster
	proxy    *proxy.Proxy
	counters *counters
	ready    atomic.Bool

	listener *proxy.Listener
	server   *http.Server
	admin    *http.Server
	adminL   net.Listener
}

// http2Scheme before the address of a cluster makes the gateway speak HTTP/2 with it, which gRPC streams need.
const http2Scheme = "h2c://"

// start prepares everything until serve can accept. After an error nothing is left running.
func start(ctx context.Context, o *options, guest hostsim.Source, logger *slog.Logger) (_ *gateway, err error) {
	g := &gateway{o: o, log: logger}
	defer func() {
		if err != nil {
			g.close(ctx)
		}
	}()
	// The addresses first, because they fail fastest.
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	g.listener = proxy.NewListener(l, o.maxClients, o.workers, o.idleTimeout)
	if o.admin != "" {
		if g.adminL, err = net.Listen("tcp", o.admin); err != nil {
			return nil, fmt.Errorf("--admin: %w", err)
		}
	}
	// The upstream is a cluster too, that of the route, so a filter may call it.
	addresses := map[string]string{proxy.RouteCluster: o.upstream}
	maps.Copy(addresses, o.clusters)
	clusters := make(map[string]hostsim.Cluster, len(addresses))
	for name, addr := range addresses {
		host, http2 := strings.CutPrefix(addr, http2Scheme)
		c, err := hostsim.NewHTTPCluster(hostsim.HTTPClusterConfig{
			Address:        host,
			HTTP2:          http2,
			ConnectTimeout: o.connectTimeout,
			MaxConnections: o.maxConnections,
			MaxPending:     o.maxPending,
		})
		if err != nil {
			return nil, &inputError{fmt.Errorf("--cluster %s=%s: %w", name, addr, err)}
		}
		g.clusters = append(g.clusters, c)
		clusters[name] = c
	}
	g.host, err = hostsim.Start(ctx, hostsim.Config{
		Guest:                       guest,
		VMID:                        o.vmID,
		PluginName:                  o.plugin,
		PluginConfig:                o.config,
		Environment:                 o.environment,
		Workers:                     o.workers,
		AllowOnHeadersStopIteration: o.stopIteration,
		BufferLimit:                 o.bufferLimit,
		FailurePolicy:               o.failure,
		StreamIdleTimeout:           o.idleTimeout,
		Clusters:                    clusters,
		Logger:                      logger,
	})
	if err != nil {
		return nil, &inputError{fmt.Errorf("the filter did not start: %w", err)}
	}
	g.counters = newCounters(func() int { return g.proxy.InFlight() })
	g.proxy = proxy.New(proxy.Config{
		Host:           g.host,
		Upstream:       o.upstream,
		ConnectTimeout: o.connectTimeout,
		RouteTimeout:   o.upstreamTimeout,
		MaxConnections: o.maxConnections,
		MaxPending:     o.maxPending,
		MaxHeaderBytes: o.maxHeaderBytes,
		Window:         o.bufferLimit,
		Observe:        g.counters,
		Logger:         logger,
	})
	errorLog := slog.NewLogLogger(logger.Handler(), slog.LevelDebug) // what clients do wrong
	g.server = &http.Server{
		Handler:           g.proxy,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       o.idleTimeout,
		// net/http allows 4096 bytes more than this.
		MaxHeaderBytes:               o.maxHeaderBytes - 4096,
		DisableGeneralOptionsHandler: true,
		ConnContext:                  proxy.ConnContext,
		ErrorLog:                     errorLog,
	}
	g.admin = &http.Server{
		Handler:           adminHandler(g.host, g.counters, &g.ready),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       headerTimeout,
		WriteTimeout:      headerTimeout,
		IdleTimeout:       o.idleTimeout,
		ErrorLog:          errorLog,
	}
	return g, nil
}

// serve runs until drain ends or a listener fails.
func (g *gateway) serve(drain, cut context.Context) int {
	defer g.close(cut)
	failed := make(chan error, 2)
	serve := func(name string, s *http.Server, l net.Listener) {
		g.log.Info("listening", "listener", name, "addr", l.Addr().String())
		go func() {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("listener %s: %w", name, err)
			}
		}()
	}
	g.ready.Store(true)
	if g.adminL != nil {
		serve("admin", g.admin, g.adminL)
	}
	serve("proxy", g.server, g.listener)

	code := exitOK
	select {
	case <-drain.Done():
	case err := <-failed:
		g.log.Error("stopping", "error", err.Error())
		code = exitFail
	}
	g.ready.Store(false)
	g.log.Info("draining", "requests", g.proxy.InFlight(), "timeout", g.o.drainTimeout.String())
	ctx, cancel := context.WithTimeout(cut, g.o.drainTimeout)
	defer cancel()
	if err := g.server.Shutdown(ctx); err != nil {
		g.log.Warn("cutting requests that did not end in time", "requests", g.proxy.InFlight())
	}
	return code
}

// close ends everything that start started, in the order of dependence.
func (g *gateway) close(cut context.Context) {
	if g.listener != nil {
		g.listener.Hurry()
		_ = g.listener.Close() // the server has already closed it if it served on it
	}
	if g.server != nil {
		_ = g.server.Close()
	}
	if g.proxy != nil {
		ctx, cancel := context.WithTimeout(context.Background(), requestEndTimeout)
		if err := g.proxy.Wait(ctx); err != nil {
			g.log.Error("requests did not end", "requests", g.proxy.InFlight())
		}
		cancel()
		g.proxy.Close()
	}
	if g.host != nil {
		// A filter may have calls to deliver that outlive their requests. It gets as much time for them as a drain.
		ctx, cancel := context.WithTimeout(cut, g.o.drainTimeout)
		if err := g.host.Close(ctx); err != nil {
			g.log.Warn("the filter had not finished", "timeout", g.o.drainTimeout.String())
		}
		cancel()
	}
	for _, c := range g.clusters {
		c.Close()
	}
	if g.admin != nil {
		_ = g.admin.Close()
	}
	if g.adminL != nil {
		_ = g.adminL.Close()
	}
}
