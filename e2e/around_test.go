package e2e

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	gzipv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/compression/gzip/compressor/v3"
	compressorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/compressor/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	upstreamsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/oncegate/oncegate/envoy"
	"github.com/oncegate/oncegate/manager/api"
)

// What is around the gate: filters before it, and a manager that cannot be reached.

func isGate(f *hcmv3.HttpFilter) bool { return strings.HasPrefix(f.Name, "oncegate") }

// withoutGate removes the gate from an Envoy's configuration and changes nothing else.
func withoutGate(hcm *hcmv3.HttpConnectionManager) error {
	hcm.HttpFilters = slices.DeleteFunc(hcm.HttpFilters, isGate)
	return nil
}

// beforeTheGate puts the CORS filter and the compressor where the published configurations
// say that they belong.
func beforeTheGate(hcm *hcmv3.HttpConnectionManager) error {
	pack := func(m proto.Message) *anypb.Any {
		a, err := anypb.New(m)
		if err != nil {
			panic(err)
		}
		return a
	}
	filter := func(name string, m proto.Message) *hcmv3.HttpFilter {
		return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: pack(m)}}
	}
	gate := slices.IndexFunc(hcm.HttpFilters, isGate)
	if gate < 0 {
		return fmt.Errorf("no gate in %v", hcm.HttpFilters)
	}
	hcm.HttpFilters = slices.Insert(hcm.HttpFilters, gate,
		filter("envoy.filters.http.cors", &corsv3.Cors{}),
		filter("envoy.filters.http.compressor", &compressorv3.Compressor{
			CompressorLibrary:       &corev3.TypedExtensionConfig{Name: "gzip", TypedConfig: pack(&gzipv3.Gzip{})},
			ResponseDirectionConfig: &compressorv3.Compressor_ResponseDirectionConfig{RemoveAcceptEncodingHeader: true},
		}))
	hcm.GetRouteConfig().VirtualHosts[0].TypedPerFilterConfig = map[string]*anypb.Any{
		"envoy.filters.http.cors": pack(&corsv3.CorsPolicy{AllowOriginStringMatch: []*matcherv3.StringMatcher{
			{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: "https://"}},
		}}),
	}
	return nil
}

// With the CORS filter and the compressor before the gate, each client gets its own origin
// and an encoding that it accepts, on first answers and on replays.
func TestCORSAndCompression(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		whole := strings.Repeat(`{"paid": true}`, 100)
		s := newSurface(t, target, mode, nil, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("X-Asked", r.Header.Get("Accept-Encoding"))
			_, _ = io.WriteString(w, whole)
		}, beforeTheGate)
		for _, first := range []string{"gzip", ""} {
			key := newKey()
			for n, c := range []struct{ origin, accept string }{{"https://a", first}, {"https://b", ""}, {"https://c", "gzip"}, {"https://d", "br"}} {
				pay := pay(key, "Origin", c.origin)
				if c.accept != "" {
					pay.headers["Accept-Encoding"] = c.accept
				}
				a := send(t, s.proxies[0], pay)
				if a.status != 200 || a.replayed() != (n > 0) {
					t.Fatalf("%v: %v", c, a)
				}
				if got := a.headers.Values("Access-Control-Allow-Origin"); len(got) != 1 || got[0] != c.origin || a.headers.Get("X-Asked") != "" {
					t.Errorf("%v: allowed %q, upstream was asked for %q", c, got, a.headers.Get("X-Asked"))
				}
				body, encoding := a.body, a.headers.Get("Content-Encoding")
				if want := strings.ReplaceAll(c.accept, "br", ""); encoding != want {
					t.Errorf("%v: encoding %q", c, encoding)
				}
				if encoding == "gzip" {
					z, err := gzip.NewReader(bytes.NewReader(body))
					if err == nil {
						body, err = io.ReadAll(z)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				if string(body) != whole {
					t.Errorf("%v: %q", c, body)
				}
			}
		}
	})
}

// If upstream compresses, a retry that cannot read the recorded answer learns how to
// get it, and nothing runs again.
func TestRetryLearnsTheRecordedEncoding(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newSurface(t, target, mode, nil, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, "zipped")
		}, nil)
		p, key := s.proxies[0], newKey()
		zipped := pay(key, "Accept-Encoding", "gzip")
		first := wantFirst(t, p, zipped, 200)
		wantProblem(t, p, pay(key), 406, "encoding-not-accepted")
		wantReplay(t, p, zipped, first)
		key = newKey()
		first = wantFirst(t, p, pay(key), 200)
		wantReplay(t, p, pay(key), first)
	})
}

// Calls to the manager carry the request's trace, and the log names the cluster and what
// happened, few times.
func TestFailedCallsAreLoggedWithTheirTrace(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		var mu sync.Mutex
		var traces []string
		manager := serveBoth(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if message, err := readFrame(r.Body); err == nil {
				var c api.StreamCall
				if err := c.View(message); err != nil {
					t.Error(err)
				}
				headers := map[string]string{}
				for _, h := range c.Trace {
					headers[h.Name] = h.Value
				}
				if headers["x-request-id"] == "" {
					t.Errorf("no request id: %v", headers)
				}
				mu.Lock()
				traces = append(traces, headers["traceparent"]+" "+headers["b3"])
				mu.Unlock()
			}
			http.Error(w, "go away", http.StatusForbidden)
		}))
		t.Cleanup(manager.Close)
		for _, c := range []struct{ cluster, address, want string }{
			{"oncegate_manager", manager.Listener.Addr().String(), "the manager does not allow the gate's calls"},
			{"oncegate_manager", "127.0.0.1:1", "no connection: the connection ended with gRPC status 14"},
			{"nowhere", "127.0.0.1:1", "no connection: refused at once"},
		} {
			s := &stack{dir: t.TempDir(), target: target, mode: mode, managerAddr: c.address, paymentsAddr: "127.0.0.1:1",
				plugin: map[string]any{"manager": map[string]any{"cluster": c.cluster, "timeout_ms": 1000}}}
			s.target.alone = true // its whole log is read
			s.stopAtEnd(t)
			p := s.startProxy(t)
			began := time.Now()
			calls := make([]call, 50)
			for i := range calls {
				calls[i] = pay(newKey(), "Traceparent", "00-1-2-01", "B3", "0")
			}
			wantProblem(t, p, calls[0], 503, "manager-unavailable")
			// Side by side, because each waits for a connection until its time has passed.
			refused := sendCalls(t.Context(), p, calls[1:])
			wantCounts(t, refused.count(t), map[string]int{"503": len(calls) - 1})
			for _, a := range refused.answers {
				if !bytes.Contains(a.body, []byte("manager-unavailable")) {
					t.Errorf("answer %s", a.body)
				}
			}
			if err := p.stop(); err != nil {
				t.Error(err)
			}
			log := p.tail(maxLines)
			if want := fmt.Sprintf("a call to cluster %q (reserve) failed: %s", c.cluster, c.want); !strings.Contains(log, want) {
				t.Errorf("the log does not say %s:\n%s", want, log)
			}
			// One line per worker and period.
			if n, limit := strings.Count(log, "failed: "), 2*(1+int(time.Since(began)/(10*time.Second))); n > limit {
				t.Errorf("%d lines, at most %d are allowed:\n%s", n, limit, log)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if len(traces) == 0 || slices.ContainsFunc(traces, func(s string) bool { return s != "00-1-2-01 0" }) {
			t.Errorf("the manager got %q", traces)
		}
	})
}

// The first caller and each retry get the trailers.
func TestReplaysHaveTrailers(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Trailer", "X-Checksum")
			if r.URL.Path != "/empty" {
				_, _ = io.WriteString(w, "paid")
			}
			w.Header().Set("X-Checksum", "1")
		}))
		t.Cleanup(upstream.Close)
		s := &stack{dir: t.TempDir(), target: target, mode: mode, paymentsAddr: upstream.Listener.Addr().String()}
		s.stopAtEnd(t)
		s.startManager(t)
		b := bootstrapOf(t, s, mode, nil)
		err := envoy.Edit(b, func(hcm *hcmv3.HttpConnectionManager, _ *wasmv3.PluginConfig) error {
			hcm.HttpProtocolOptions = &corev3.Http1ProtocolOptions{EnableTrailers: true}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		const name = protocolOptions
		for _, c := range b.GetStaticResources().GetClusters() {
			if c.GetName() == "upstream" {
				options := new(upstreamsv3.HttpProtocolOptions)
				if err := c.TypedExtensionProtocolOptions[name].UnmarshalTo(options); err != nil {
					t.Fatal(err)
				}
				options.GetExplicitHttpConfig().GetHttpProtocolOptions().EnableTrailers = true
				if c.TypedExtensionProtocolOptions[name], err = anypb.New(options); err != nil {
					t.Fatal(err)
				}
			}
		}
		config, err := envoy.MarshalBootstrap(b)
		if err != nil {
			t.Fatal(err)
		}
		p, err := target.start(filepath.Join(s.dir, "envoy"), config, 2, "--use-dynamic-base-id", "--disable-hot-restart")
		if p != nil {
			s.proxies = append(s.proxies, p)
		}
		if err != nil {
			t.Fatal(err)
		}
		h2 := new(http.Protocols)
		h2.SetUnencryptedHTTP2(true)
		for name, transport := range map[string]*http.Transport{"HTTP/1.1": {}, "HTTP/2.0": {Protocols: h2}} {
			client := &http.Client{Transport: transport, Timeout: patience}
			defer transport.CloseIdleConnections()
			for path, want := range map[string]string{"/full": "paid 1 ", "/empty": " 1 "} {
				if e := target; path == "/empty" && name == "HTTP/2.0" && strings.HasPrefix(e.Version, "1.36.") {
					continue // see losesTrailers
				}
				c := pay(newKey())
				c.path = path
				for n := range 3 {
					req, err := c.request(t.Context(), p)
					if err != nil {
						t.Fatal(err)
					}
					req.Header.Set("Te", "trailers")
					resp, err := client.Do(req)
					if err != nil {
						t.Fatal(err)
					}
					body, err := io.ReadAll(resp.Body)
					resp.Body.Close()
					got := string(body) + " " + resp.Trailer.Get("X-Checksum") + " " + resp.Header.Get("Idempotency-Trailers")
					replayed := resp.Header.Get("Idempotent-Replayed") == "true"
					if err != nil || got != want || replayed != (n > 0) || resp.Proto != name {
						t.Errorf("%s %s, try %d: %v, %q, want %q; %v", resp.Proto, path, n, err, got, want, resp.Header)
					}
				}
			}
		}
	})
}
