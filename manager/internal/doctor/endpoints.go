package doctor

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/oncegate/oncegate/manager/api/schema"
)

const (
	checkEndpoints = "envoy: ledgers"
	checkToken     = "envoy: the gate's token"
)

const (
	// askPart is the part of a call's time limit that an endpoint has: the doctor may run where it reaches none of them.
	askPart = 5
	// askOften is how often the only endpoint of a cluster is asked. A service's address may stand for several managers, and
	// each connection may reach another one.
	askOften = 6
	// maxEndpoints bounds how many endpoints of a cluster are asked.
	maxEndpoints = 64
)

// endpoint is an address of a managers' cluster, and what the doctor found there.
type endpoint struct {
	address, url string
	// matched: Envoy chooses by a match whether it speaks TLS there.
	matched bool
	// status is of its answer to /readyz; 0: it did not answer.
	status int
	// manager: it has the header of managers.
	manager bool
	// ledgers are the ids of the ledgers that answered there; none if the doctor's token may not ask.
	ledgers []string
}

// endpoints asks the managers at the addresses that Envoy has for their clusters. It does not judge an address that it
// cannot reach.
func (t Target) endpoints(ctx context.Context, r *report, gates []gate, dump object, statuses map[string]object) {
	names := clustersOfManagers(gates)
	found := make([][]endpoint, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		all := addressesOf(dump, statuses, name)
		found[i] = all[:min(len(all), maxEndpoints)]
		for n := range found[i] {
			wg.Go(func() { t.askEndpoint(ctx, &found[i][n], len(found[i]) == 1) })
		}
	}
	wg.Wait()
	managers, known := map[string][]string{}, map[string][]string{} // URLs and ids of ledgers, by cluster
	for i, name := range names {
		managers[name], known[name] = judgeEndpoints(r, name, found[i])
	}
	for i := range gates {
		if !gates[i].asksManagers() {
			continue
		}
		var urls []string
		for _, name := range gates[i].clusters() {
			gates[i].ledgers = append(gates[i].ledgers, known[name]...)
			urls = append(urls, managers[name]...)
		}
		t.gateToken(ctx, r, gates[i], urls)
	}
}

// addressesOf returns the endpoints of a cluster.
func addressesOf(dump object, statuses map[string]object, cluster string) (found []endpoint) {
	scheme, matched := "http", false
	for _, c := range dump.all("Cluster") {
		if c.text("name") == cluster {
			matched = len(c.list("transport_socket_matches")) > 0
			if c["transport_socket"] != nil {
				scheme = "https"
			}
		}
	}
	for _, h := range statuses[cluster].list("host_statuses") {
		socket := h.at("address").at("socket_address")
		if port := socket.number("port_value", 0); port > 0 && net.ParseIP(socket.text("address")) != nil {
			address := net.JoinHostPort(socket.text("address"), strconv.Itoa(int(port)))
			found = append(found, endpoint{address: address, url: scheme + "://" + address, matched: matched})
		}
	}
	return found
}

// askEndpoint fills in what an endpoint says of itself.
func (t Target) askEndpoint(ctx context.Context, e *endpoint, alone bool) {
	ctx, cancel := t.briefly(ctx)
	defer cancel()
	urls := []string{e.url}
	if e.matched {
		urls = []string{"https://" + e.address, "http://" + e.address}
	}
	for _, url := range urls {
		a, err := t.call(ctx, request{url: url + "/readyz", fresh: true, noRedirect: true})
		if err != nil || e.matched && a.header.Get("Oncegate-Manager") == "" {
			continue
		}
		e.url, e.status, e.manager = url, a.status, a.header.Get("Oncegate-Manager") != ""
		break
	}
	times := 1
	if alone {
		times = askOften
	}
	for range times {
		if !e.manager { // the doctor's token is for managers only
			return
		}
		a, err := t.call(ctx, request{url: e.url + "/v1/ledger/stats", token: t.Token, fresh: true})
		var s schema.LedgerStats
		if err != nil || a.status != http.StatusOK || schema.Unmarshal(a.body, &s) != nil || s.LedgerID == "" {
			return
		}
		if !slices.Contains(e.ledgers, s.LedgerID) {
			e.ledgers = append(e.ledgers, s.LedgerID)
		}
	}
}

// briefly bounds what an endpoint may take.
func (t Target) briefly(ctx context.Context) (context.Context, context.CancelFunc) {
	if t.Client.Timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, t.Client.Timeout/askPart)
}

// judgeEndpoints reports what the endpoints of a cluster are. It returns the URLs of the managers among them, and the ids
// of their ledgers.
func judgeEndpoints(r *report, cluster string, found []endpoint) (managers, ledgers []string) {
	at := map[string]string{} // one endpoint of each ledger
	silent, strange := 0, 0
	for _, e := range found {
		switch {
		case e.status == 0:
			silent++
		case !e.manager:
			strange++
			r.fail(checkEndpoints, fmt.Sprintf("cluster %q: %s answers, and it is no manager (no Oncegate-Manager in its answer, status %d)", oneLine(cluster), e.address, e.status),
				"correct the endpoints of the cluster: they must be managers' API listeners (--listen). Where the address means something else here, run the command beside Envoy")
		default:
			managers = append(managers, e.url)
			if len(e.ledgers) == 0 {
				silent++
			}
		}
		for _, id := range e.ledgers {
			at[id] = e.address
		}
	}
	ledgers = slices.Sorted(maps.Keys(at))
	switch {
	case len(ledgers) > 1:
		var list []string
		for _, id := range ledgers {
			list = append(list, fmt.Sprintf("%s at %s", oneLine(id), at[id]))
		}
		r.fail(checkEndpoints, fmt.Sprintf("cluster %q leads to %d ledgers (%s): a key runs once at each", oneLine(cluster), len(ledgers), strings.Join(list, ", ")),
			"give each of these managers a cluster of its own and name the clusters in manager.shards (envoy/shards.yaml), or let them share a store (envoy/managers.yaml)")
	case strange > 0:
	case len(found) > 1 && silent > 0:
		r.warn(checkEndpoints, fmt.Sprintf("cluster %q: %d of %d endpoints did not say which ledger they are", oneLine(cluster), silent, len(found)),
			"run the command where it reaches the managers, with an operator's --token-file: managers with a data directory each must not be in one cluster")
	case len(ledgers) == 1:
		r.ok(checkEndpoints, "cluster %q: one ledger at %s", oneLine(cluster), many(len(found), "endpoint"))
	}
	return managers, ledgers
}

// gateToken makes a look-up with the gate's own token, which changes nothing. Without a manager among the cluster's
// endpoints, the manager that the doctor looks at is asked.
func (t Target) gateToken(ctx context.Context, r *report, g gate, urls []string) {
	token, hidden := g.token()
	if hidden {
		r.ok(checkToken, "%s: the gate takes it from the variable %s of Envoy's environment, which no dump shows, so it is not tried. A token that managers refuse shows in %q",
			g.place(), oneLine(g.config.at("manager").text("auth_token_env")), checkAnswers)
		return
	}
	if len(urls) == 0 {
		if a, err := t.call(ctx, request{url: t.Manager + "/readyz"}); err != nil || a.header.Get("Oncegate-Manager") == "" {
			return
		}
		urls = []string{t.Manager}
	}
	taken := false
	for _, url := range urls {
		ctx, cancel := t.briefly(ctx)
		a, err := t.call(ctx, request{method: http.MethodPost, url: url + "/v1/ledger/lookup", token: token, body: `{"key":"doctor","scope":"oncegate-doctor","token":"doctor"}`})
		cancel()
		const do = `set manager.auth_token of the gate, or the variable that manager.auth_token_env names, to a token that has the word "gate" in the managers' --auth-token-file`
		switch {
		case err != nil:
		case a.status == http.StatusUnauthorized && token == "":
			r.fail(checkToken, fmt.Sprintf("%s has none, and the manager at %s asks for one: %s", g.place(), url, g.refusal()), do)
			return
		case a.status == http.StatusUnauthorized:
			r.fail(checkToken, fmt.Sprintf("%s: the manager at %s does not know it: %s", g.place(), url, g.refusal()), do)
			return
		case a.status == http.StatusForbidden && !t.certified():
			r.fail(checkToken, fmt.Sprintf("%s: the manager at %s does not let it make the calls of a gate: %s", g.place(), url, g.refusal()), do)
			return
		default:
			taken = taken || a.status == http.StatusOK
		}
	}
	if taken {
		r.ok(checkToken, "%s: managers take its calls", g.place())
	}
}

// token returns the gate's token. hidden: the gate takes it from Envoy's own environment, of which a dump has only names.
func (g gate) token() (token string, hidden bool) {
	manager := g.config.at("manager")
	name := manager.text("auth_token_env")
	if name == "" {
		return manager.text("auth_token"), false
	}
	token, shown := g.filter.at("vm_config").at("environment_variables").at("key_values")[name].(string)
	return token, !shown
}

// certified reports whether the doctor shows a client certificate. A manager then judges that as well, and the gate has
// another one.
func (t Target) certified() bool {
	transport, ok := t.Client.Transport.(*http.Transport)
	return ok && transport.TLSClientConfig != nil && (len(transport.TLSClientConfig.Certificates) > 0 || transport.TLSClientConfig.GetClientCertificate != nil)
}

// refusal says what becomes of requests while no manager takes the gate's calls.
func (g gate) refusal() string {
	if slices.ContainsFunc(g.rules(), func(rule object) bool { return rule.text("failure_mode") == "open" }) {
		return "requests with a key pass unprotected"
	}
	return "requests with a key get 503"
}
