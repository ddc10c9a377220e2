package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	upstreamhttpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/oncegate/oncegate/envoy"
	"github.com/oncegate/oncegate/envoy/envoybin"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// upstreamAnswer is what upstream answers every request with.
var upstreamAnswer = bytes.Repeat([]byte("x"), 256)

// gateBench is all that runs for the comparison.
type gateBench struct {
	gateSettings
	dir         string
	envoy       envoybin.Binary
	upstream    *process
	setups      map[string]*setup
	prefixes    int
	statusReads int64
}

// setup is one Envoy and what it needs. Rows with the same filter share it.
type setup struct {
	addr    string
	counted []*program
}

// program is a process whose CPU time counts, or the servers of a store together.
type program struct {
	name string
	*process
	store []*servers.Server
}

func (p *program) stop() {
	if p.process != nil {
		p.process.stop()
	}
	for _, s := range p.store {
		s.Close()
	}
}

func (p *program) cpu() (sum time.Duration, err error) {
	if p.process != nil {
		return p.process.cpu()
	}
	for _, s := range p.store {
		sum += cpuOfTree(s.PID())
	}
	return sum, nil
}

// rss is 0 for a store: the processes of some share their memory.
func (p *program) rss() (int64, error) {
	if p.process != nil {
		return p.process.rss()
	}
	return 0, nil
}

func (s *setup) logs() string {
	var b strings.Builder
	for _, p := range s.counted {
		if p.process == nil {
			continue
		}
		text := p.log.String()
		fmt.Fprintf(&b, "%s: ...%s\n", p.name, text[max(0, len(text)-1000):])
	}
	return b.String()
}

// newGateBench starts upstream.
func newGateBench(ctx context.Context, s gateSettings) (*gateBench, error) {
	binary, err := envoybin.Find(ctx, s.toolchain)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(s.out, "gate") // on the disk that the repository is on: /tmp may be memory
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	b := &gateBench{gateSettings: s, dir: dir, envoy: binary, setups: map[string]*setup{}}
	if err := os.WriteFile(filepath.Join(dir, "load.lua"), loadLua, 0o644); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if b.upstream, err = startNginx(ctx, dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return b, nil
}

func (b *gateBench) stop() {
	for _, s := range b.setups {
		for _, p := range s.counted {
			p.stop()
		}
	}
	b.upstream.stop()
	_ = os.RemoveAll(b.dir)
}

// startNginx starts upstream: one process that answers everything with the same bytes
// and counts.
func startNginx(ctx context.Context, dir string) (*process, error) {
	path, err := exec.LookPath("nginx")
	if err != nil {
		path = "/usr/sbin/nginx" // not on everybody's PATH
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`daemon off; master_process off; pid %[1]s/nginx.pid; error_log stderr error;
events { worker_connections 4096; }
http {
	access_log off; keepalive_requests 1000000000; keepalive_timeout 1h; default_type application/json; server_tokens off;
	client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/fastcgi; uwsgi_temp_path %[1]s/uwsgi; scgi_temp_path %[1]s/scgi;
	server {
		listen %[2]s;
		location / { return 200 "%[3]s"; }
		location = /status { stub_status; }
	}
}
`, dir, addr, upstreamAnswer)
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return nil, err
	}
	return startListening(ctx, "", addr, path, "-c", file, "-p", dir)
}

// prepare starts what a row needs, unless another row has.
func (b *gateBench) prepare(ctx context.Context, c gateCase, connections []int) (*gateResult, error) {
	s := b.setups[c.setup]
	if s == nil {
		s = new(setup)
		b.setups[c.setup] = s
		if err := b.start(ctx, c.setup, s); err != nil {
			return nil, err
		}
	}
	return &gateResult{gateCase: c, on: s, loads: make([]best, len(connections))}, nil
}

// start starts the processes of a setup. The published configuration is changed in
// nothing but its addresses, the access log, which none has, and the filter where it is
// not the gate.
func (b *gateBench) start(ctx context.Context, name string, s *setup) error {
	module, manager, plugin := b.module, b.manager, map[string]any{}
	mode := "body"
	var edit func(*hcmv3.HttpConnectionManager) error
	var cluster *clusterv3.Cluster
	address := "127.0.0.1:9" // of an Envoy without a manager
	var programs []*program
	defer func() { s.counted = append(s.counted, programs...) }()
	switch name {
	case "plain":
		edit = replaceGate(nil)
	case "noop":
		module = b.noop
	case "plain ext_proc", "tuned ext_proc":
		binary, plain := b.tuned, name == "plain ext_proc"
		if plain {
			binary = b.plain
		}
		redis, err := b.startRedis(ctx, strings.ReplaceAll(name, " ", "-"))
		if err != nil {
			return err
		}
		programs = append(programs, &program{name: "Redis", process: redis})
		processor, err := startLogged("", binary, "-redis", redis.addr)
		if err != nil {
			return err
		}
		programs = append(programs, &program{name: "ext_proc", process: processor})
		filter, err := extprocFilter(plain)
		if err != nil {
			return err
		}
		if cluster, err = extprocCluster(processor.addr); err != nil {
			return err
		}
		edit = replaceGate(filter)
	default:
		switch name {
		case "headers":
			mode = "headers"
		case "direct":
			edit = direct
		case "cancel":
			plugin["client_abort"] = "cancel"
		}
		dir := filepath.Join(b.dir, name+"-data")
		where := []string{"--data-dir", dir}
		if engine, ok := strings.CutPrefix(name, "on "); ok {
			store, dsn, err := startStore(ctx, engine)
			if err != nil {
				return err
			}
			defer func() { programs = append(programs, &program{name: "store", store: store}) }() // it stops last
			where = []string{"--store", engine, "--store-dsn", dsn}
		}
		p, err := startLogged(dir, manager, append([]string{"serve", "--listen", "127.0.0.1:0", "--max-entries", fmt.Sprint(roomyWindow),
			"--max-bytes", "1099511627776", "--scope-share", "0"}, where...)...)
		if err != nil {
			return err
		}
		programs = append(programs, &program{name: "manager", process: p})
		address = p.addr
	}
	p, err := b.startEnvoy(ctx, name, envoy.Local{
		Mode: mode, Upstream: b.upstream.addr, Manager: address, Module: module, Plugin: plugin,
		Edit: func(hcm *hcmv3.HttpConnectionManager) error {
			hcm.AccessLog = nil
			if edit != nil {
				return edit(hcm)
			}
			return nil
		},
	}, cluster)
	if err != nil {
		return err
	}
	s.addr = p.addr
	s.counted = append(s.counted, &program{name: "Envoy", process: p}) // first: it stops first
	return nil
}

// startStore starts what keeps the records of an engine, and returns how the manager gets there.
func startStore(ctx context.Context, engine string) (store []*servers.Server, dsn string, err error) {
	one := func(s *servers.Server, err error) ([]*servers.Server, string, error) {
		if err != nil {
			return nil, "", err
		}
		return []*servers.Server{s}, s.URL, nil
	}
	switch engine {
	case "postgres":
		return one(servers.StartPostgres(ctx))
	case "redis":
		return one(servers.StartRedis(ctx))
	default:
		members, err := servers.StartEtcdMembers(ctx, 3)
		var urls []string
		for _, m := range members {
			urls = append(urls, m.URL)
		}
		return members, strings.Join(urls, ","), err
	}
}

// startEnvoy starts an Envoy with one worker.
func (b *gateBench) startEnvoy(ctx context.Context, name string, l envoy.Local, cluster *clusterv3.Cluster) (p *process, err error) {
	if l.Listen, err = freeAddr(); err != nil {
		return nil, err
	}
	l.Admin = "127.0.0.1:0"
	config, err := l.Bootstrap()
	if err != nil {
		return nil, err
	}
	if cluster != nil {
		bootstrap := new(bootstrapv3.Bootstrap)
		if err := protojson.Unmarshal(config, bootstrap); err != nil {
			return nil, err
		}
		bootstrap.StaticResources.Clusters = append(bootstrap.StaticResources.Clusters, cluster)
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
	return startListening(ctx, "", l.Listen, b.envoy.Path, "--config-path", file, "--concurrency", "1", "--log-level", "warning",
		"--use-dynamic-base-id", "--disable-hot-restart")
}

// startRedis starts one that fsyncs before it answers.
func (b *gateBench) startRedis(ctx context.Context, name string) (*process, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(b.dir, name+"-redis")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	return startListening(ctx, dir, addr, "redis-server", "--bind", host, "--port", port, "--dir", dir, "--save", "", "--appendonly", "yes",
		"--appendfsync", "always", "--maxmemory-policy", "noeviction", "--daemonize", "no")
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

// replaceGate replaces the gate by another filter, or by none.
func replaceGate(filter *hcmv3.HttpFilter) func(*hcmv3.HttpConnectionManager) error {
	return func(hcm *hcmv3.HttpConnectionManager) error {
		var filters []*hcmv3.HttpFilter
		for _, f := range hcm.GetHttpFilters() {
			if f.GetName() != "oncegate" {
				filters = append(filters, f)
			} else if filter != nil {
				filters = append(filters, filter)
			}
		}
		if filter == nil && len(filters) == len(hcm.GetHttpFilters()) {
			return errors.New("the configuration has no filter of the name oncegate")
		}
		hcm.HttpFilters = filters
		return nil
	}
}

// extprocFilter sends the processor a request's headers, and the answer unless the processor has ended the stream: for
// the plain one the headers and then the whole body, for the tuned one both together.
func extprocFilter(plain bool) (*hcmv3.HttpFilter, error) {
	body := extprocv3.ProcessingMode_STREAMED
	if plain {
		body = extprocv3.ProcessingMode_BUFFERED
	}
	config, err := anypb.New(&extprocv3.ExternalProcessor{
		GrpcService: &corev3.GrpcService{
			TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: "extproc"}},
		},
		ProcessingMode: &extprocv3.ProcessingMode{
			RequestHeaderMode: extprocv3.ProcessingMode_SEND, ResponseHeaderMode: extprocv3.ProcessingMode_SEND,
			ResponseBodyMode: body,
		},
		SendBodyWithoutWaitingForHeaderResponse: !plain,
		MessageTimeout:                          durationpb.New(5 * time.Second),
	})
	if err != nil {
		return nil, err
	}
	return &hcmv3.HttpFilter{Name: "extproc", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: config}}, nil
}

func extprocCluster(addr string) (*clusterv3.Cluster, error) {
	http2, err := anypb.New(&upstreamhttpv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: &corev3.Http2ProtocolOptions{}},
		}},
	})
	if err != nil {
		return nil, err
	}
	tcp, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, err
	}
	address := &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: tcp.IP.String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(tcp.Port)},
	}}}
	return &clusterv3.Cluster{
		Name: "extproc", ConnectTimeout: durationpb.New(time.Second), ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		TypedExtensionProtocolOptions: map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: "extproc", Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address}}}},
		}}},
	}, nil
}
