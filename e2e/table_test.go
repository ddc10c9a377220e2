package e2e

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/oncegate/oncegate/envoy"

	// The filters that the table puts around the gate.
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/buffer/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"
)

// What Envoy and others do around the gate, as one table: protocols, filters, clusters, and
// managers that fail. After each part no VM has died and the proxy still serves.
func TestTable(t *testing.T) {
	t.Parallel()
	for _, part := range []struct {
		name string
		// bootstrap changes the configuration; nil: as published.
		bootstrap func(t *testing.T, mode string, b *bootstrapv3.Bootstrap) error
		plugin    map[string]any
		run       func(t *testing.T, r *tableRig)
	}{
		{"HTTP/1 after", func(_ *testing.T, mode string, b *bootstrapv3.Bootstrap) error {
			return pass1xx(mode, b)
		}, nil, protocols},
		{"HTTP/2 after", func(_ *testing.T, mode string, b *bootstrapv3.Bootstrap) error {
			if err := upstreamHTTP2(b); err != nil {
				return err
			}
			return pass1xx(mode, b)
		}, nil, protocols},
		{"filters and clusters", aroundTheGate, nil, func(t *testing.T, r *tableRig) {
			filters(t, r)
			clusters(t, r)
		}},
		{"failing manager", nil, map[string]any{
			"manager": map[string]any{"timeout_ms": 5000}, "commit_retry": map[string]any{"initial_ms": 50, "max_ms": 200},
		}, managerFaults},
		{"narrow manager", func(_ *testing.T, _ string, b *bootstrapv3.Bootstrap) error {
			return narrow(b, "oncegate_manager")
		}, map[string]any{
			"manager": map[string]any{"timeout_ms": 500}, "commit_retry": map[string]any{"initial_ms": 50, "max_ms": 200},
		}, managerOverflows},
	} {
		t.Run(part.name, func(t *testing.T) {
			eachCell(t, func(t *testing.T, target envoyTarget, mode string) {
				plugin := map[string]any{"pending_wait_timeout": 60, "pending_ttl_seconds": 600, "match": []any{
					map[string]any{"path_prefix": "/any", "methods": []string{"*"}},
					map[string]any{"path_prefix": "/jwt-before", "scope": []string{"host", "path", "header:x-caller-id"}},
					map[string]any{},
				}}
				for name, value := range part.plugin {
					plugin[name] = value
				}
				r := &tableRig{upstream: newHeldUpstream(t)}
				r.stack = &stack{dir: t.TempDir(), target: target, mode: mode, plugin: plugin, paymentsAddr: r.upstream.address}
				if part.bootstrap != nil {
					r.bootstrap = func(b *bootstrapv3.Bootstrap) error { return part.bootstrap(t, mode, b) }
				}
				r.stopAtEnd(t)
				r.startManager(t)
				r.front = newManagerFront(t, r.managerAddr)
				r.managerAddr = r.front.address
				r.startProxy(t)
				part.run(t, r)
				// A late repetition of a call may still have a narrow manager's only slot.
				c := pay(newKey())
				wantReplay(t, r.proxies[0], c, eventuallyPaid(t, "it does not serve", r.proxies[0], *c.key))
				r.wantRuns(t, c, 1)
				r.proxies[0].wantNoTrap(t)
			})
		})
	}
}

// tableRig is a stack with an upstream and a manager whose ways the test chooses.
type tableRig struct {
	*stack
	upstream *heldUpstream
	front    *managerFront
}

// wantRuns checks how often the work of a call ran.
func (r *tableRig) wantRuns(t *testing.T, c call, want int) {
	t.Helper()
	if n := r.upstream.count(*c.key); n != want {
		t.Errorf("executed %d times, want %d", n, want)
	}
}

// pass1xx lets interim answers of upstream pass, in headers mode: body mode cannot have a body
// that waits for upstream's 100.
func pass1xx(mode string, b *bootstrapv3.Bootstrap) error {
	return envoy.Edit(b, func(hcm *hcmv3.HttpConnectionManager, _ *wasmv3.PluginConfig) error {
		hcm.Proxy_100Continue = mode == "headers"
		return nil
	})
}

// protocols has clients of both protocols send the special cases of HTTP.
func protocols(t *testing.T, r *tableRig) {
	for _, http2 := range []bool{false, true} {
		transport := &http.Transport{DisableCompression: true, Protocols: new(http.Protocols), ExpectContinueTimeout: patience}
		transport.Protocols.SetHTTP1(!http2)
		transport.Protocols.SetUnencryptedHTTP2(http2)
		t.Cleanup(transport.CloseIdleConnections)
		client := &http.Client{Transport: transport, Timeout: patience}
		for _, c := range []struct {
			name    string
			call    call
			status  int
			ignored bool // by the gate
		}{
			{"POST", call{}, 201, false},
			{"expect", call{headers: map[string]string{"Expect": "100-continue"}}, 201, false},
			{"early hints", call{headers: map[string]string{"X-Hints": "yes"}}, 201, false},
			{"204", call{headers: map[string]string{"X-Status": "204"}}, 204, false},
			{"304", call{headers: map[string]string{"X-Status": "304"}}, 304, false},
			{"HEAD", call{method: "HEAD"}, 201, true},
			{"HEAD of a rule", call{method: "HEAD", path: "/any"}, 201, false},
			{"HEAD 304 of a rule", call{method: "HEAD", path: "/any", headers: map[string]string{"X-Status": "304"}}, 304, false},
			{"GET 304 of a rule", call{method: "GET", path: "/any", headers: map[string]string{"X-Status": "304"}}, 304, false},
		} {
			t.Run(fmt.Sprintf("%s http2=%v", c.name, http2), func(t *testing.T) {
				key := newKey()
				c.call.key = &key
				ask := func() (answer, []int) {
					var informed []int
					ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
						Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
							informed = append(informed, code)
							return nil
						},
					})
					a, err := doWith(ctx, client, r.proxies[0], c.call)
					if err != nil {
						t.Fatal(err)
					}
					if a.status != c.status {
						t.Fatalf("%v", a)
					}
					return a, informed
				}
				var want []int
				switch {
				case c.call.headers["Expect"] != "":
					want = []int{100}
				case c.call.headers["X-Hints"] != "" && r.mode == "headers":
					want = []int{103}
				}
				first, informed := ask()
				if first.replayed() || !slices.Equal(informed, want) {
					t.Errorf("first call: %v after %v, want %v", first, informed, want)
				}
				again, _ := ask()
				if c.ignored {
					if again.replayed() {
						t.Errorf("retry: %v", again)
					}
					r.wantRuns(t, c.call, 2)
					return
				}
				if c.call.method == "HEAD" {
					// The length of a body that is never sent is not recorded, and need not be repeated.
					first.headers.Del("Content-Length")
				}
				if err := again.sameAs(first); err != nil || !again.replayed() {
					t.Errorf("retry: %v: %v; first: %v", err, again, first)
				}
				r.wantRuns(t, c.call, 1)
			})
		}
	}
}

// around is a filter that the table puts before and after the gate.
type around struct {
	name   string
	config string // JSON; %d is 2 before the gate, which lets replays pass that filter, and 1 after it
	status int    // of its refusal
	pass   call
	refuse call // no body and headers: it refuses what it let pass before
	// After the gate it refuses nothing, because a body that the gate held arrives whole, and it lets such bodies pass.
	beforeOnly bool
}

var arounds = []around{
	{
		name: "authz", status: 403, config: authz(""),
		pass: call{headers: map[string]string{"Authorization": "Bearer good"}}, refuse: call{headers: map[string]string{"Authorization": "Bearer bad"}},
	},
	{
		name: "authz-body", status: 403, config: authz(`"with_request_body": {"max_request_bytes": 1048576},`),
		pass: call{headers: map[string]string{"Authorization": "Bearer good"}}, refuse: call{headers: map[string]string{"Authorization": "Bearer bad"}},
	},
	{
		name: "jwt", status: 401, config: `"@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
			"providers": {"p": {"issuer": "test", "local_jwks": {"inline_string": "{\"keys\": [{\"kty\": \"oct\", \"alg\": \"HS256\", \"k\": \"` + base64.RawURLEncoding.EncodeToString(jwtKey) + `\"}]}"},
				"claim_to_headers": [{"header_name": "x-caller-id", "claim_name": "sub"}]}},
			"rules": [{"match": {"prefix": "/"}, "requires": {"provider_name": "p"}}]`,
		pass: call{headers: map[string]string{"Authorization": token("alice", 1)}}, refuse: call{headers: map[string]string{"Authorization": token("alice", 1) + "x"}},
	},
	{
		name: "limit", status: 429, config: `"@type": "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
			"stat_prefix": "limit", "token_bucket": {"max_tokens": %d, "fill_interval": "86400s"},
			"filter_enabled": {"default_value": {"numerator": 100}}, "filter_enforced": {"default_value": {"numerator": 100}}`,
	},
	{
		name: "buffer", status: 413, config: `"@type": "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer", "max_request_bytes": 1000`,
		refuse: call{body: strings.Repeat("x", 5000)}, beforeOnly: true,
	},
	{
		name: "large-buffer", config: `"@type": "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer", "max_request_bytes": 4194304`,
		pass: call{body: strings.Repeat("x", 1_500_000)},
	},
}

func authz(more string) string {
	return `"@type": "type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz", ` + more +
		`"http_service": {"server_uri": {"uri": "http://authz", "cluster": "authz", "timeout": "60s"}}`
}

// jwtKey signs the tokens of the table's callers.
var jwtKey = []byte("a secret of some thirty-two bytes")

// token is what a caller's n-th token looks like in the authorization header.
func token(caller string, n int) string {
	part := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	text := part(`{"alg":"HS256","typ":"JWT"}`) + "." + part(fmt.Sprintf(`{"iss":"test","sub":%q,"exp":4102444800,"jti":"%d"}`, caller, n))
	mac := hmac.New(sha256.New, jwtKey)
	mac.Write([]byte(text))
	return "Bearer " + text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// aroundTheGate puts each filter before and after the gate, for paths that begin with its
// name, and adds the clusters that clusters needs. A request with x-filters: off
// passes none of them, one with x-cluster goes to that cluster.
func aroundTheGate(t *testing.T, _ string, b *bootstrapv3.Bootstrap) error {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // an empty one is refused
		if r.Header.Get("Authorization") != "Bearer good" || strings.HasPrefix(r.URL.Path, "/authz-body") && len(body) == 0 {
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	t.Cleanup(server.Close)
	var upstream *clusterv3.Cluster
	for _, c := range b.GetStaticResources().GetClusters() {
		if c.GetName() == "upstream" {
			upstream = c
		}
	}
	for name, more := range map[string]string{
		"narrow": `{}`, "authz": `{}`,
		"ejecting": `{"outlier_detection": {"consecutive_5xx": 1, "interval": "0.1s", "base_ejection_time": "3600s", "max_ejection_time": "3600s", "max_ejection_percent": 100},
			"common_lb_config": {"healthy_panic_threshold": {"value": 0}}}`,
	} {
		c, extra := proto.CloneOf(upstream), new(clusterv3.Cluster)
		if err := protojson.Unmarshal([]byte(more), extra); err != nil {
			return err
		}
		proto.Merge(c, extra)
		c.Name, c.LoadAssignment.ClusterName = name, name
		b.StaticResources.Clusters = append(b.StaticResources.Clusters, c)
	}
	if err := narrow(b, "narrow"); err != nil {
		return err
	}
	if err := setClusterAddress(b, "authz", server.Listener.Addr().String()); err != nil {
		return err
	}
	return envoy.Edit(b, func(hcm *hcmv3.HttpConnectionManager, _ *wasmv3.PluginConfig) error {
		host := hcm.GetRouteConfig().GetVirtualHosts()[0]
		route := func(text string) error {
			r := new(routev3.Route)
			if err := protojson.Unmarshal([]byte(text), r); err != nil {
				return fmt.Errorf("%s: %w", text, err)
			}
			host.Routes = slices.Insert(host.Routes, len(host.Routes)-1, r)
			return nil
		}
		if err := route(`{"match": {"prefix": "/", "headers": [{"name": "x-filters", "string_match": {"exact": "off"}}]}, "route": {"cluster": "upstream"}}`); err != nil {
			return err
		}
		if err := route(`{"match": {"prefix": "/", "headers": [{"name": "x-cluster", "present_match": true}]}, "route": {"cluster_header": "x-cluster"}}`); err != nil {
			return err
		}
		var added [2][]*hcmv3.HttpFilter
		for i, position := range []string{"before", "after"} {
			for _, a := range arounds {
				name, config := a.name+"-"+position, a.config
				if strings.Contains(config, "%d") {
					config = fmt.Sprintf(config, 2-i)
				}
				f := new(hcmv3.HttpFilter)
				text := fmt.Sprintf(`{"name": %q, "disabled": true, "typed_config": {%s}}`, name, config)
				if err := protojson.Unmarshal([]byte(text), f); err != nil {
					return fmt.Errorf("%s: %w", text, err)
				}
				added[i] = append(added[i], f)
				if err := route(fmt.Sprintf(`{"match": {"prefix": "/%s/"}, "route": {"cluster": "upstream", "timeout": "60s"}, "typed_per_filter_config":
					{%q: {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "config": {}}}}`, name, name)); err != nil {
					return err
				}
			}
		}
		gate := slices.IndexFunc(hcm.HttpFilters, func(f *hcmv3.HttpFilter) bool { return f.Name == "oncegate" })
		hcm.HttpFilters = slices.Concat(hcm.HttpFilters[:gate], added[0], hcm.HttpFilters[gate:gate+1], added[1], hcm.HttpFilters[gate+1:])
		return nil
	})
}

// filters has each filter let requests pass and refuse them. A request that a filter after the
// gate refuses did not run, so its key is free. A request that a filter before the gate refuses
// does not reach the gate, even if there is a recorded answer.
func filters(t *testing.T, r *tableRig) {
	p := r.proxies[0]
	for _, position := range []string{"before", "after"} {
		for _, a := range arounds {
			t.Run(a.name+" "+position, func(t *testing.T) {
				c := a.pass
				key := newKey()
				c.key, c.path = &key, "/"+a.name+"-"+position+"/"
				wantReplay(t, p, c, wantFirst(t, p, c, 201))
				r.wantRuns(t, c, 1)
				if a.status == 0 || a.beforeOnly && position == "after" {
					return
				}
				path := c.path
				c = a.refuse
				key = newKey()
				c.key, c.path = &key, path
				off := c
				off.headers = map[string]string{"X-Filters": "off"}
				maps.Copy(off.headers, c.headers)
				status := map[string]string{"before": "", "after": "not-sent"}[position]
				for range 2 {
					if no := wantFirst(t, p, c, a.status); no.headers.Get("Idempotency-Status") != status {
						t.Errorf("refused: %v; want status %q", no, status)
					}
					r.wantRuns(t, c, 0)
				}
				first := wantFirst(t, p, off, 201)
				if position == "after" {
					wantReplay(t, p, c, first)
				} else if no := wantFirst(t, p, c, a.status); no.headers.Get("Idempotency-Status") != "" {
					t.Errorf("refused: %v", no)
				}
				r.wantRuns(t, c, 1)
			})
		}
	}
	t.Run("tokens that change", func(t *testing.T) {
		key := newKey()
		c := call{key: &key, path: "/jwt-before/", headers: map[string]string{"Authorization": token("alice", 2)}}
		first := wantFirst(t, p, c, 201)
		c.headers = map[string]string{"Authorization": token("alice", 3)}
		wantReplay(t, p, c, first)
		c.headers = map[string]string{"Authorization": token("bob", 1)}
		wantFirst(t, p, c, 201)
		r.wantRuns(t, c, 2)
	})
}

// clusters has Envoy refuse to send requests: their keys are free.
func clusters(t *testing.T, r *tableRig) {
	p := r.proxies[0]
	refused := func(t *testing.T, cluster string) {
		t.Helper()
		c := pay(newKey(), "X-Cluster", cluster)
		for range 2 {
			if a := wantFirst(t, p, c, 503); a.headers.Get("Idempotency-Status") != "not-sent" {
				t.Errorf("%v", a)
			}
		}
		r.wantRuns(t, c, 0)
		c.headers["X-Cluster"] = "upstream"
		wantReplay(t, p, c, wantFirst(t, p, c, 201))
		r.wantRuns(t, c, 1)
	}
	t.Run("no such cluster", func(t *testing.T) { refused(t, "nowhere") })
	t.Run("circuit breaker", func(t *testing.T) {
		c := pay(newKey(), "X-Cluster", "narrow", "X-Hold", "yes")
		held := r.sendAside(t, c)
		r.awaitRun(t, c)
		refused(t, "narrow")
		r.upstream.release()
		first := <-held
		if first.status != 201 {
			t.Errorf("%v", first)
		}
		wantReplay(t, p, c, first)
		r.wantRuns(t, c, 1)
	})
	t.Run("outlier detection", func(t *testing.T) {
		eventually(t, "upstream is not ejected", func() error {
			c := pay(newKey(), "X-Cluster", "ejecting", "X-Status", "500")
			first := send(t, p, c)
			wantRuns := 0
			if first.status == 500 {
				wantReplay(t, p, c, first)
				wantRuns = 1
			}
			r.wantRuns(t, c, wantRuns)
			if first.status != 503 {
				return fmt.Errorf("%v", first)
			}
			return nil
		})
		refused(t, "ejecting")
	})
}

// sendAside sends a call whose answer comes later.
func (r *tableRig) sendAside(t *testing.T, c call) <-chan answer {
	got := make(chan answer, 1)
	ctx := context.WithoutCancel(t.Context()) // bounded by the client
	go func() {
		a, err := do(ctx, r.proxies[0], c)
		if err != nil {
			a = answer{body: []byte(err.Error())}
		}
		got <- a
	}()
	return got
}

// awaitRun waits until the work of a call has begun.
func (r *tableRig) awaitRun(t *testing.T, c call) {
	t.Helper()
	eventually(t, "the work does not begin", func() error {
		if n := r.upstream.count(*c.key); n != 1 {
			return fmt.Errorf("it ran %d times", n)
		}
		return nil
	})
}
