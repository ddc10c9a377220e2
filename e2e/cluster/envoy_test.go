package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// startDNS answers at an address for names with the addresses that lookup knows, and returns its own port.
func startDNS(t *testing.T, listen string, lookup func(host string) (ip string)) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", listen)
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		answer := new(dns.Msg)
		answer.SetReply(q)
		switch ip := lookup(strings.ToLower(strings.TrimSuffix(q.Question[0].Name, "."))); {
		case ip == "":
			answer.Rcode = dns.RcodeNameError
		case q.Question[0].Qtype == dns.TypeA:
			answer.Answer = []dns.RR{&dns.A{
				Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.ParseIP(ip),
			}}
		}
		_ = w.WriteMsg(answer)
	})}
	ended := make(chan error, 1)
	go func() { ended <- server.ActivateAndServe() }()
	t.Cleanup(func() {
		_ = server.Shutdown()
		<-ended
	})
	_, port, err := net.SplitHostPort(conn.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// envoyPath is the Envoy that `make run` takes.
func envoyPath(t *testing.T) string {
	t.Helper()
	text, err := output(t.Context(), root, nil, built(t, "setup"), "default")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(strings.TrimSpace(text[strings.LastIndex(text, " ")+1:]), ")")
}

// envoy is a real one, with all but its connection to a control plane from there.
type envoy struct {
	admin string
}

// startEnvoy starts it as the node that nodeID says, in YAML, with a control plane at the port.
func startEnvoy(t *testing.T, nodeID, xds string) *envoy {
	t.Helper()
	dir := t.TempDir()
	file, admin := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	config := fmt.Sprintf(`
node:%s
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
dynamic_resources:
  ads_config: {api_type: GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: xds}}]}
  lds_config: {ads: {}, resource_api_version: V3, initial_fetch_timeout: 0s}
  cds_config: {ads: {}, resource_api_version: V3, initial_fetch_timeout: 0s}
static_resources:
  clusters:
  - name: xds
    type: STATIC
    connect_timeout: 5s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment:
      cluster_name: xds
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}}]}]
`, nodeID, xds)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, nil, "envoy", envoyPath(t), "-c", file, "--use-dynamic-base-id", "--disable-hot-restart", "--concurrency", "2", "-l", "warning",
		"--admin-address-path", admin)
	e := &envoy{}
	p.await(t, "ready", func(ctx context.Context) error {
		address, err := os.ReadFile(admin)
		if err != nil {
			return err
		}
		e.admin = "http://" + string(address)
		return answers(http.DefaultClient, e.admin+"/ready")(ctx)
	})
	return e
}

func (e *envoy) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.admin+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// dump is what Envoy runs, by type of the messages.
type dump map[string][]string

func (e *envoy) dump(ctx context.Context) (dump, error) {
	text, err := e.get(ctx, "/config_dump?include_eds")
	if err != nil {
		return nil, err
	}
	return parseDump(text)
}

func parseDump(text []byte) (dump, error) {
	var all any
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, err
	}
	d := dump{}
	d.add(all)
	return d, nil
}

// add finds the messages that have a type of their own, at any depth.
func (d dump) add(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			d.add(e)
		}
	case map[string]any:
		for key, e := range v {
			if key != "draining_state" && key != "warming_state" {
				d.add(e)
			}
		}
		if kind, ok := v["@type"].(string); ok {
			text, _ := json.Marshal(v)
			kind = strings.TrimPrefix(kind, "type.googleapis.com/")
			d[kind] = append(d[kind], string(text))
		}
	}
}

func (e *envoy) config(t *testing.T) dump {
	t.Helper()
	d, err := e.dump(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (d dump) text(kind string) string { return strings.Join(d[kind], "\n") }

// named is the message with that name, or "".
func (d dump) named(kind, name string) string {
	i := slices.IndexFunc(d[kind], func(text string) bool { return strings.Contains(text, fmt.Sprintf(`"name":%q`, name)) })
	if i < 0 {
		return ""
	}
	return d[kind][i]
}

// resolves waits for a host with that address at a manager's port.
func (e *envoy) resolves(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		text, err := e.get(ctx, "/clusters")
		if err == nil && !strings.Contains(string(text), "::"+address+":8090::") {
			err = errNotYet
		}
		return err
	}
}

// filter is an HTTP filter, with the configuration that came for it apart from the listener.
type filter struct{ name, text string }

// filters are those of the listener with the port.
func (d dump) filters(t *testing.T, port string) (chain []filter) {
	t.Helper()
	for _, text := range d["envoy.config.listener.v3.Listener"] {
		if !strings.Contains(text, `"port_value":`+port) {
			continue
		}
		var l struct {
			FilterChains []struct {
				Filters []struct {
					TypedConfig struct {
						HTTPFilters []json.RawMessage `json:"http_filters"`
					} `json:"typed_config"`
				} `json:"filters"`
			} `json:"filter_chains"`
		}
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatal(err)
		}
		for _, raw := range l.FilterChains[0].Filters[0].TypedConfig.HTTPFilters {
			var f struct {
				Name      string          `json:"name"`
				Discovery json.RawMessage `json:"config_discovery"`
			}
			if err := json.Unmarshal(raw, &f); err != nil {
				t.Fatal(err)
			}
			text := string(raw)
			if f.Discovery != nil {
				for _, e := range d["envoy.config.core.v3.TypedExtensionConfig"] {
					if strings.Contains(e, fmt.Sprintf(`"name":%q`, f.Name)) {
						text = e
					}
				}
			}
			chain = append(chain, filter{f.Name, text})
		}
	}
	return chain
}

var errNotYet = errors.New("not yet")

// has waits for a listener with a gate that has all these texts.
func (e *envoy) has(t *testing.T, port string, texts ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		d, err := e.dump(ctx)
		if err == nil && !slices.ContainsFunc(d.filters(t, port), func(f filter) bool {
			for _, text := range texts {
				if !strings.Contains(f.text, text) {
					return false
				}
			}
			return strings.Contains(f.name, "oncegate")
		}) {
			err = errNotYet
		}
		return err
	}
}

// hasNot waits for a listener without a gate.
func (e *envoy) hasNot(t *testing.T, port string) func(context.Context) error {
	return func(ctx context.Context) error {
		d, err := e.dump(ctx)
		if err == nil && slices.ContainsFunc(d.filters(t, port), func(f filter) bool { return strings.Contains(f.name, "oncegate") }) {
			err = errNotYet
		}
		return err
	}
}
