package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3" // named in extprocFilter
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3" // named in extprocCluster
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/oncegate/oncegate/envoy"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// setup is one Envoy and what it needs.
type setup struct {
	addr  string
	envoy *servers.Server
	cpu   []cpuTime // of gatePrograms
}

// start starts the processes of a setup. The published configuration is changed in
// nothing but its addresses, the access log, which none has, and the filter where it is
// not the gate.
func (b *gateBench) start(ctx context.Context, name string) (*setup, error) {
	s := &setup{cpu: make([]cpuTime, len(gatePrograms))}
	local := envoy.Local{Mode: "body", Upstream: b.upstream.Listener.Addr().String(), Module: filepath.Join(b.build, "oncegate.wasm"), Plugin: map[string]any{}}
	edit := func(*hcmv3.HttpConnectionManager) error { return nil }
	var cluster string
	switch name {
	case "plain":
		edit = replaceGate("")
	case "noop":
		local.Module = filepath.Join(b.build, "bench", "noop.wasm")
	case "plain ext_proc", "tuned ext_proc":
		plain, filter := name == "plain ext_proc", fmt.Sprintf(extprocFilter, "STREAMED", true)
		if plain {
			filter = fmt.Sprintf(extprocFilter, "BUFFERED", false)
		}
		processor, err := b.startProcessor(ctx, plain, s)
		if err != nil {
			return nil, err
		}
		_, port, err := net.SplitHostPort(processor.URL)
		if err != nil {
			return nil, err
		}
		cluster, edit = fmt.Sprintf(extprocCluster, port), replaceGate(filter)
	case "headers":
		local.Mode = "headers"
	case "direct":
		edit = direct
	case "cancel":
		local.Plugin["client_abort"] = "cancel"
	}
	local.Manager = "127.0.0.1:9" // of an Envoy without a manager
	if cluster == "" && name != "plain" && name != "noop" {
		manager, err := b.startGateManager(ctx, name, s)
		if err != nil {
			return nil, err
		}
		local.Manager = manager.URL
	}
	local.Edit = func(hcm *hcmv3.HttpConnectionManager) error {
		hcm.AccessLog = nil
		return edit(hcm)
	}
	p, err := b.startEnvoy(ctx, name, local, cluster)
	if err != nil {
		return nil, err
	}
	s.addr, s.envoy, s.cpu[0] = p.URL, p, cpuOf(p.PID())
	return s, nil
}

// startGateManager starts a manager, on the engine that the setup's name says.
func (b *gateBench) startGateManager(ctx context.Context, name string, s *setup) (*servers.Server, error) {
	flags := []string{"--data-dir", filepath.Join(b.dir, name+"-data")}
	if engine, ok := strings.CutPrefix(name, "on "); ok {
		dsn, err := b.startStore(ctx, engine, s)
		if err != nil {
			return nil, err
		}
		flags = []string{"--store", engine, "--store-dsn", dsn}
	}
	p, err := b.startManager(ctx, flags...)
	if err != nil {
		return nil, err
	}
	s.cpu[1] = cpuOf(p.PID())
	return p, nil
}

// startStore starts what keeps the records of an engine, and returns how the manager gets there.
func (b *gateBench) startStore(ctx context.Context, engine string, s *setup) (dsn string, err error) {
	if engine == "etcd" {
		urls, pids, err := b.startEtcd(ctx)
		s.cpu[3] = cpuOf(pids...)
		return strings.Join(urls, ","), err
	}
	start := servers.StartRedis
	if engine == "postgres" {
		start = servers.StartPostgres
	}
	store, err := start(ctx)
	if err != nil {
		return "", err
	}
	b.onStop(store.Close)
	s.cpu[3] = cpuOf(store.PID())
	return store.URL, nil
}

// startProcessor starts an external processor, and a Redis that fsyncs before it answers.
func (b *gateBench) startProcessor(ctx context.Context, plain bool, s *setup) (*servers.Server, error) {
	redis, err := b.startRedis(ctx)
	if err != nil {
		return nil, err
	}
	processor, err := b.startProgram(ctx, filepath.Join(b.build, "peers-extproc"), fmt.Sprint("-plain=", plain), "-redis", redis.URL, "-listen")
	if err != nil {
		return nil, err
	}
	s.cpu[2], s.cpu[3] = cpuOf(processor.PID()), cpuOf(redis.PID())
	return processor, nil
}

// startEnvoy starts an Envoy with one worker.
func (b *gateBench) startEnvoy(ctx context.Context, name string, l envoy.Local, cluster string) (p *servers.Server, err error) {
	if l.Listen, err = b.address(); err != nil {
		return nil, err
	}
	l.Admin = "127.0.0.1:0"
	config, err := l.Bootstrap()
	if err != nil {
		return nil, err
	}
	if cluster != "" {
		bootstrap, more := new(bootstrapv3.Bootstrap), new(clusterv3.Cluster)
		if err := errors.Join(protojson.Unmarshal(config, bootstrap), protojson.Unmarshal([]byte(cluster), more)); err != nil {
			return nil, err
		}
		bootstrap.StaticResources.Clusters = append(bootstrap.StaticResources.Clusters, more)
		if err := envoy.Validate(bootstrap); err != nil {
			return nil, err
		}
		if config, err = envoy.MarshalBootstrap(bootstrap); err != nil {
			return nil, err
		}
	}
	file := filepath.Join(b.dir, name+".json")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		return nil, err
	}
	return b.startOn(ctx, l.Listen, b.envoy.Path, "--config-path", file, "--concurrency", "1", "--log-level", "warning",
		"--use-dynamic-base-id", "--disable-hot-restart")
}

// direct lets the gate's upstream calls go to the clusters of their routes.
func direct(hcm *hcmv3.HttpConnectionManager) error {
	for _, host := range hcm.GetRouteConfig().GetVirtualHosts() {
		for _, route := range host.GetRoutes() {
			if route.GetName() != "" {
				route.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
					"oncegate": {Fields: map[string]*structpb.Value{"direct": structpb.NewBoolValue(true)}},
				}}
			}
		}
	}
	return nil
}

// replaceGate replaces the gate by another filter, in JSON, or by none.
func replaceGate(text string) func(*hcmv3.HttpConnectionManager) error {
	return func(hcm *hcmv3.HttpConnectionManager) error {
		for i, f := range hcm.GetHttpFilters() {
			if f.GetName() != "oncegate" {
				continue
			}
			if text == "" {
				hcm.HttpFilters = append(hcm.HttpFilters[:i:i], hcm.HttpFilters[i+1:]...)
				return nil
			}
			filter := new(hcmv3.HttpFilter)
			hcm.HttpFilters[i] = filter
			return protojson.Unmarshal([]byte(text), filter)
		}
		return errors.New("the configuration has no filter of the name oncegate")
	}
}

// extprocFilter sends the processor a request's headers, and the answer unless the processor has ended the stream: for
// the plain one the headers and then the whole body, for the tuned one both together.
const extprocFilter = `{"name": "extproc", "typedConfig": {
	"@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
	"grpcService": {"envoyGrpc": {"clusterName": "extproc"}},
	"processingMode": {"requestHeaderMode": "SEND", "responseHeaderMode": "SEND", "responseBodyMode": "%s"},
	"sendBodyWithoutWaitingForHeaderResponse": %v,
	"messageTimeout": "5s"
}}`

// extprocCluster has the processor's port.
const extprocCluster = `{"name": "extproc", "connectTimeout": "1s", "type": "STATIC",
	"typedExtensionProtocolOptions": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
		"@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
		"explicitHttpConfig": {"http2ProtocolOptions": {}}}},
	"loadAssignment": {"clusterName": "extproc", "endpoints": [{"lbEndpoints": [{"endpoint": {"address":
		{"socketAddress": {"address": "127.0.0.1", "portValue": %s}}}}]}]}
}`
