package envoydiff

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// envoy is a running Envoy with one worker thread and a listener for every site.
type envoy struct {
	cmd     *exec.Cmd
	logFile string
	done    chan struct{}
	ports   map[string]int
	admin   string

	mu      sync.Mutex
	off     int64
	partial []byte
	lines   map[string][]string // by plugin
	last    string              // the plugin of the latest line
}

type object = map[string]any

// startEnvoy starts one Envoy for the sites. Its clusters are the sites' peers.
func startEnvoy(t *testing.T, bin string, sites []*site, wasm string) *envoy {
	t.Helper()
	dir := t.TempDir()
	e := &envoy{logFile: filepath.Join(dir, "log"), done: make(chan struct{}), ports: map[string]int{}, lines: map[string][]string{}}
	config, err := json.Marshal(bootstrap(sites, wasm))
	if err != nil {
		t.Fatal(err)
	}
	file, adminFile := filepath.Join(dir, "envoy.json"), filepath.Join(dir, "admin")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(e.logFile)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	e.cmd = exec.Command(bin, "--config-path", file, "--admin-address-path", adminFile, "--concurrency", "1",
		"--use-dynamic-base-id", "--disable-hot-restart", "--log-level", "warning", "--component-log-level", "wasm:info", "--log-format", "%v")
	e.cmd.Stdout, e.cmd.Stderr = log, log
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = e.cmd.Wait(); close(e.done) }()
	t.Cleanup(func() {
		_ = e.cmd.Process.Kill()
		<-e.done
	})
	e.awaitReady(t, adminFile, len(sites)+1)
	return e
}

func (e *envoy) awaitReady(t *testing.T, adminFile string, listeners int) {
	deadline := time.Now().Add(2 * time.Minute)
	for {
		err := e.findPorts(adminFile, listeners)
		if err == nil {
			return
		}
		select {
		case <-e.done:
			t.Fatalf("Envoy ended:\n%s", e.tail())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("Envoy is not ready: %v\n%s", err, e.tail())
		}
	}
}

func (e *envoy) tail() string {
	text, _ := os.ReadFile(e.logFile)
	return string(text[max(0, len(text)-8000):])
}

func (e *envoy) findPorts(adminFile string, listeners int) error {
	admin, err := os.ReadFile(adminFile)
	if err != nil {
		return err
	}
	e.admin = "http://" + strings.TrimSpace(string(admin))
	if _, err := get(e.admin + "/ready"); err != nil {
		return err
	}
	text, err := get(e.admin + "/listeners?format=json")
	if err != nil {
		return err
	}
	var list struct {
		Statuses []struct {
			Name    string `json:"name"`
			Address struct {
				Socket struct {
					Port int `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return err
	}
	for _, s := range list.Statuses {
		e.ports[s.Name] = s.Address.Socket.Port
	}
	if len(list.Statuses) != listeners {
		return fmt.Errorf("%d listeners: %s", len(list.Statuses), text)
	}
	return nil
}

func get(url string) ([]byte, error) {
	resp, err := http.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return b, err
}

func (e *envoy) dial(tb testing.TB, listener string) *net.TCPConn {
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", e.ports[listener]))
	if err != nil {
		tb.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// guestLines are the lines of one plugin's guest since the last call. Envoy writes them
// to the file itself, before it does anything else.
func (e *envoy) guestLines(tb testing.TB, plugin string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	f, err := os.Open(e.logFile)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.NewSectionReader(f, e.off, 64<<20))
	if err != nil {
		tb.Fatal(err)
	}
	e.off += int64(len(text))
	e.partial = append(e.partial, text...)
	for {
		line, rest, ok := bytes.Cut(e.partial, []byte("\n"))
		if !ok {
			break
		}
		e.partial = rest
		e.line(string(line))
	}
	lines := e.lines[plugin]
	delete(e.lines, plugin)
	return lines
}

// line sorts one line of Envoy's log: "wasm log NAME ROOT VM: text" is the guest's, and
// "Function: NAME failed: why" a trap's. That names no plugin, but there is one worker,
// and the plugin that logged last is the one that runs.
func (e *envoy) line(line string) {
	if text, ok := strings.CutPrefix(line, "wasm log "); ok {
		who, what, _ := strings.Cut(text, ": ")
		e.last, _, _ = strings.Cut(who, " ")
		if !strings.HasPrefix(what, "panic: ") {
			e.lines[e.last] = append(e.lines[e.last], what)
		}
		return
	}
	if text, ok := strings.CutPrefix(line, "Function: "); ok {
		callback, _, _ := strings.Cut(text, " failed: ")
		e.lines[e.last] = append(e.lines[e.last], "trap in "+callback)
	}
}

// barrier returns once the worker has handled everything that had reached it before.
func (e *envoy) barrier(tb testing.TB, probe *http.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range 3 {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", e.ports["probe"]), nil)
		if err != nil {
			tb.Fatal(err)
		}
		resp, err := probe.Do(req)
		if err != nil {
			tb.Fatalf("Envoy's worker does not answer: %v\n%s", err, e.tail())
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

// --- the configuration ---

func bootstrap(sites []*site, wasm string) object {
	listeners := []any{listener("probe", 0, "0s", nil, object{"direct_response": object{"status": 200}})}
	var clusters []any
	for _, s := range sites {
		listeners = append(listeners, listener(s.name, s.limit, fmt.Sprintf("%gs", s.idle.Seconds()), s.filters(wasm), object{"route": object{"cluster": s.name, "timeout": "0s"}}))
		clusters = append(clusters, cluster(s.name, s.upstreams.Addr(), s.limit), cluster(s.name+"_c", s.callees.Addr(), 0))
		if s.rpc {
			clusters = append(clusters, rpcClusters(s)...)
		}
	}
	return object{
		"admin":            object{"address": socket("127.0.0.1:0")},
		"static_resources": object{"listeners": listeners, "clusters": clusters},
	}
}

func socket(address string) object {
	host, port, _ := net.SplitHostPort(address)
	return object{"socket_address": object{"address": host, "port_value": json.Number(port)}}
}

func typed(name string, fields object) object {
	fields["@type"] = "type.googleapis.com/" + name
	return fields
}

func listener(name string, limit int, idle string, filters []any, action object) object {
	action["match"] = object{"prefix": "/"}
	action["name"] = "route"
	hcm := typed("envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", object{
		"stat_prefix":           name,
		"stream_idle_timeout":   idle,
		"delayed_close_timeout": "0.1s", // how long a connection that Envoy cuts stays open
		"route_config":          object{"virtual_hosts": []any{object{"name": "all", "domains": []any{"*"}, "routes": []any{action}}}},
		"http_filters":          append(filters, object{"name": "router", "typed_config": typed("envoy.extensions.filters.http.router.v3.Router", object{})}),
		"http_protocol_options": object{"enable_trailers": true},
	})
	l := object{
		"name": name, "address": socket("127.0.0.1:0"),
		"filter_chains": []any{object{"filters": []any{object{"name": "http", "typed_config": hcm}}}},
	}
	if limit > 0 {
		l["per_connection_buffer_limit_bytes"] = limit
	}
	return l
}

func cluster(name string, address net.Addr, limit int) object {
	c := object{
		"name": name, "type": "STATIC", "connect_timeout": "30s",
		// Out of the way of a crowd.
		"circuit_breakers": object{"thresholds": []any{object{"max_connections": 100000, "max_pending_requests": 100000, "max_requests": 100000}}},
		"load_assignment": object{"cluster_name": name, "endpoints": []any{object{"lb_endpoints": []any{object{
			"endpoint": object{"address": socket(address.String())}}}}}},
		// A connection for each request, so that the test knows which is whose.
		"typed_extension_protocol_options": object{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed(
			"envoy.extensions.upstreams.http.v3.HttpProtocolOptions", object{
				"common_http_protocol_options": object{"max_requests_per_connection": 1},
				"explicit_http_config":         object{"http_protocol_options": object{"enable_trailers": true}},
			})},
	}
	if limit > 0 {
		c["per_connection_buffer_limit_bytes"] = limit
	}
	return c
}

// rpcClusters are a site's clusters of gRPC streams: its server, one that nobody listens for, one without a host, one which
// carries one stream.
func rpcClusters(s *site) []any {
	var all []any
	for suffix, address := range map[string]net.Addr{"_g": s.server.ln.Addr(), "_gone": &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}, "_full": s.server.ln.Addr(), "_empty": nil} {
		c := object{
			"name": s.name + suffix, "type": "STATIC", "connect_timeout": "30s",
			"typed_extension_protocol_options": object{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed(
				"envoy.extensions.upstreams.http.v3.HttpProtocolOptions", object{
					"explicit_http_config": object{"http2_protocol_options": object{}},
				})},
		}
		if suffix == "_full" {
			c["circuit_breakers"] = object{"thresholds": []any{object{"max_requests": 1}}}
		}
		if address != nil {
			c["load_assignment"] = object{"cluster_name": s.name + suffix, "endpoints": []any{object{"lb_endpoints": []any{object{
				"endpoint": object{"address": socket(address.String())}}}}}}
		}
		all = append(all, c)
	}
	return all
}

func (s *site) filters(wasm string) []any {
	config := object{
		"name": s.name, "root_id": s.name,
		"vm_config": object{
			"vm_id": s.name, "runtime": "envoy.wasm.runtime.v8",
			"code": object{"local": object{"filename": wasm}},
		},
		"failure_policy": s.policy,
		"configuration":  typed("google.protobuf.StringValue", object{"value": s.plugin}),
	}
	if s.allow {
		config["allow_on_headers_stop_iteration"] = true
	}
	if s.backoff > 0 {
		config["reload_config"] = object{"backoff": object{"base_interval": fmt.Sprintf("%gs", s.backoff.Seconds())}}
	}
	return []any{object{"name": "wasm", "typed_config": typed("envoy.extensions.filters.http.wasm.v3.Wasm", object{"config": config})}}
}
