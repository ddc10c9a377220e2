package e2e

import (
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/api_key_auth/v3" // for protojson
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/basic_auth/v3"   // for protojson
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"    // for protojson
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// authentication is a way to authenticate callers in a filter before the gate.
type authentication struct {
	name string
	// filter is the name of this way's filter; empty: jwt_authn, which chooses by the path itself.
	filter string
	// kept: the caller's authorization header reaches the gate.
	kept bool
	// scope is what the reference advises.
	scope []string
	// credential returns the headers of a caller's try, "?" and a query among them. Tries differ where credentials are renewed.
	credential func(caller string, try int) []string
}

// authorizer is an ext_authz service that names the caller of a token, and takes the token away.
func authorizer(t *testing.T) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, _, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), ".")
		w.Header().Set("x-caller", caller)
		w.Header().Set("x-envoy-auth-headers-to-remove", "authorization")
	}))
	t.Cleanup(s.Close)
	return s
}

// Whatever a filter before the gate does with credentials, no caller gets another caller's answer: with the default scope there
// are two executions or a refusal, and with the scope that the reference advises two executions, and retries are replayed.
func TestFiltersBeforeTheGateKeepCallersApart(t *testing.T) {
	issuer := newIdentity(t, "issuer", nil)
	tokens := map[string]string{}
	for _, caller := range []string{"alice", "bob"} {
		for try := range 2 {
			tokens[fmt.Sprint(caller, try)] = issuer.token(t, caller, time.Duration(try+1)*time.Hour)
		}
	}
	token := func(caller string, try int) string { return tokens[fmt.Sprint(caller, try)] }
	bearer := func(caller string, try int) []string {
		return []string{"Authorization", "Bearer " + token(caller, try)}
	}
	password := func(caller string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(caller+":secret"))
	}
	ways := []authentication{
		{"jwt", "", false, []string{"host", "path", "jwt:payload.sub"}, bearer},
		{"jwt-forward", "", true, []string{"host", "path", "jwt:payload.iss", "jwt:payload.sub"}, bearer},
		{"jwt-claim", "", false, []string{"host", "path", "header:x-caller-id"}, func(caller string, try int) []string {
			return append(bearer(caller, try), "X-Caller-Id", "alice")
		}},
		{"jwt-header", "", false, []string{"host", "path", "jwt:payload.sub"}, func(caller string, try int) []string {
			return []string{"X-Jwt", token(caller, try)}
		}},
		{"jwt-query", "", false, []string{"host", "path", "jwt:payload.sub"}, func(caller string, try int) []string {
			return []string{"?", "access_token=" + token(caller, try)}
		}},
		{"api-key", "api_key", false, []string{"host", "path", "header:x-client"}, func(caller string, _ int) []string {
			return []string{"X-Api-Key", "key of " + caller}
		}},
		{"basic", "basic", true, []string{"host", "path", "header:x-user"}, func(caller string, _ int) []string {
			return []string{"Authorization", password(caller)}
		}},
		{"ext-authz", "authz", false, []string{"host", "path", "header:x-caller"}, func(caller string, try int) []string {
			return []string{"Authorization", fmt.Sprintf("Bearer %s.%d", caller, try)}
		}},
		{"ext-authz-metadata", "authz", false, []string{"host", "path", "metadata:envoy.filters.http.ext_authz:x-caller"}, func(caller string, try int) []string {
			return []string{"Authorization", fmt.Sprintf("Bearer %s.%d", caller, try)}
		}},
	}
	sum := func(s string) string {
		b := sha1.Sum([]byte(s))
		return base64.StdEncoding.EncodeToString(b[:])
	}
	filters := map[string]string{
		"jwt": fmt.Sprintf(`{"@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication", "providers": {
			"jwt": {"issuer": "us", "payload_in_metadata": "payload", "local_jwks": {"inline_string": %[1]q}},
			"jwt-forward": {"issuer": "us", "forward": true, "payload_in_metadata": "payload", "local_jwks": {"inline_string": %[1]q}},
			"jwt-claim": {"issuer": "us", "claim_to_headers": [{"header_name": "x-caller-id", "claim_name": "sub"}], "local_jwks": {"inline_string": %[1]q}},
			"jwt-header": {"issuer": "us", "from_headers": [{"name": "x-jwt"}], "payload_in_metadata": "payload", "local_jwks": {"inline_string": %[1]q}},
			"jwt-query": {"issuer": "us", "from_params": ["access_token"], "payload_in_metadata": "payload", "local_jwks": {"inline_string": %[1]q}}},
			"rules": [
			{"match": {"safe_regex": {"regex": "/(default|advised)/jwt"}}, "requires": {"provider_name": "jwt"}},
			{"match": {"safe_regex": {"regex": "/(default|advised)/jwt-forward"}}, "requires": {"provider_name": "jwt-forward"}},
			{"match": {"safe_regex": {"regex": "/(default|advised)/jwt-claim"}}, "requires": {"provider_name": "jwt-claim"}},
			{"match": {"safe_regex": {"regex": "/(default|advised)/jwt-header"}}, "requires": {"provider_name": "jwt-header"}},
			{"match": {"safe_regex": {"regex": "/(default|advised)/jwt-query"}}, "requires": {"provider_name": "jwt-query"}}]}`, issuer.jwks(t)),
		"api_key": `{"@type": "type.googleapis.com/envoy.extensions.filters.http.api_key_auth.v3.ApiKeyAuth",
			"credentials": [{"key": "key of alice", "client": "alice"}, {"key": "key of bob", "client": "bob"}],
			"key_sources": [{"header": "x-api-key"}], "forwarding": {"header": "x-client", "hide_credentials": true}}`,
		"basic": fmt.Sprintf(`{"@type": "type.googleapis.com/envoy.extensions.filters.http.basic_auth.v3.BasicAuth", "forward_username_header": "x-user",
			"users": {"inline_string": "alice:{SHA}%[1]s\nbob:{SHA}%[1]s"}}`, sum("secret")),
		"authz": `{"@type": "type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz", "http_service": {
			"server_uri": {"uri": "http://authorizer", "cluster": "authorizer", "timeout": "30s"}, "authorization_response": {
			"allowed_upstream_headers": {"patterns": [{"exact": "x-caller"}]}, "dynamic_metadata_from_headers": {"patterns": [{"exact": "x-caller"}]}}}}`,
	}
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		var match []any
		for _, w := range ways {
			match = append(match, map[string]any{"path": "/advised/" + w.name, "scope": w.scope})
		}
		s := &stack{dir: t.TempDir(), target: target, mode: mode, paymentsAddr: newAskedUpstream(t).address,
			plugin: map[string]any{"anonymous": "refuse", "match": append(match, map[string]any{})}}
		address := authorizer(t).Listener.Addr().String()
		s.bootstrap = func(b *bootstrapv3.Bootstrap) error {
			for _, c := range b.GetStaticResources().GetClusters() {
				if c.GetName() == "upstream" {
					c = proto.CloneOf(c)
					c.Name, c.LoadAssignment.ClusterName = "authorizer", "authorizer"
					b.StaticResources.Clusters = append(b.StaticResources.Clusters, c)
				}
			}
			return setClusterAddress(b, "authorizer", address)
		}
		s.edit = func(hcm *hcmv3.HttpConnectionManager) error { return authenticate(hcm, ways, filters) }
		s.stopAtEnd(t)
		s.startManager(t)
		s.startProxy(t)
		p := s.proxies[0]
		for _, w := range ways {
			key := newKey()
			of := func(scope, caller string, try int) call {
				headers := w.credential(caller, try)
				query := ""
				if headers[0] == "?" {
					query, headers = "?"+headers[1], nil
				}
				c := pay(key, headers...)
				c.path = "/" + scope + "/" + w.name + query
				return c
			}
			if w.kept {
				wantReplay(t, p, of("default", "alice", 0), wantFirst(t, p, of("default", "alice", 0), 201))
				wantFirst(t, p, of("default", "bob", 0), 201)
			} else {
				wantProblem(t, p, of("default", "alice", 0), 400, "scope-ambiguous")
				wantProblem(t, p, of("default", "bob", 0), 400, "scope-ambiguous")
			}
			alice, bob := wantFirst(t, p, of("advised", "alice", 0), 201), wantFirst(t, p, of("advised", "bob", 0), 201)
			wantReplay(t, p, of("advised", "alice", 1), alice)
			wantReplay(t, p, of("advised", "bob", 1), bob)
		}

		findings, code := examine(t, p, s.managerAddr)
		for check, text := range map[string]string{
			"envoy: callers": `removes the header "authorization", which scope names`, "envoy: counters": "get 400 scope-ambiguous",
		} {
			if code != 1 || !slices.ContainsFunc(findings, func(f finding) bool { return f.Check == check && f.Level != "ok" && strings.Contains(f.Found, text) }) {
				t.Errorf("the doctor's exit code is %d, and no finding %q has %q: %+v", code, check, text, findings)
			}
		}
	})
}

// authenticate puts filters before the gate. Each route of a way has that way's filter only, and jwt_authn.
func authenticate(hcm *hcmv3.HttpConnectionManager, ways []authentication, filters map[string]string) error {
	var before []*hcmv3.HttpFilter
	for name, config := range filters {
		f := new(hcmv3.HttpFilter)
		if err := protojson.Unmarshal(fmt.Appendf(nil, `{"name": %q, "typed_config": %s}`, name, config), f); err != nil {
			return err
		}
		before = append(before, f)
	}
	hcm.HttpFilters = append(before, hcm.GetHttpFilters()...)
	host := hcm.GetRouteConfig().GetVirtualHosts()[0]
	last := host.GetRoutes()[len(host.GetRoutes())-1]
	var routes []*routev3.Route
	only := map[*routev3.Route]string{}
	for _, w := range ways {
		for _, scope := range []string{"default", "advised"} {
			r := proto.CloneOf(last)
			r.Match = &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Path{Path: "/" + scope + "/" + w.name}}
			routes, only[r] = append(routes, r), w.filter
		}
	}
	host.Routes = append(routes, host.GetRoutes()...)
	off, err := anypb.New(&routev3.FilterConfig{Disabled: true})
	if err != nil {
		return err
	}
	for _, r := range host.GetRoutes() {
		if r.TypedPerFilterConfig == nil {
			r.TypedPerFilterConfig = map[string]*anypb.Any{}
		}
		for name := range filters {
			if name != "jwt" && name != only[r] {
				r.TypedPerFilterConfig[name] = off
			}
		}
	}
	return nil
}
