package doctor

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// network is what a doctor can reach in a test, by host and port. Nothing else answers.
type network struct {
	hosts map[string]http.Handler
	URL   string // of Envoy's admin listener
}

func (n *network) RoundTrip(r *http.Request) (*http.Response, error) {
	h := n.hosts[r.URL.Host]
	if h == nil {
		return nil, errors.New("connection refused")
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), nil
}

func (n *network) Client() *http.Client { return &http.Client{Transport: n} }

// admin is an Envoy's admin listener with given answers.
func admin(t *testing.T, dump, clusters, stats, info string) *network {
	t.Helper()
	return &network{URL: "http://envoy", hosts: map[string]http.Handler{
		"envoy": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body := map[string]string{"/config_dump": dump, "/clusters": clusters, "/stats": stats, "/server_info": info}[r.URL.Path]
			_, _ = w.Write([]byte(body))
		}),
	}}
}

// aManager is a manager with a ledger. It takes look-ups with the token gate, and answers statistics with the token
// operator. Without such a token it answers them to any caller.
type aManager struct {
	ledger, gate, operator string
	durabilities           string // JSON; "": only local
}

func (m aManager) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Oncegate-Manager", "1.2.3")
	w.Header().Set("Date", time.Now().UTC().Format(http.TimeFormat))
	may := m.operator
	switch r.URL.Path {
	case "/readyz", "/metrics":
		return
	case "/v1/ledger/lookup":
		may = m.gate
	case "/v1/ledger/stats", "/v1/jobs/stats", "/v1/functions", "/v1/peers":
	default:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	switch token := r.Header.Get("Authorization"); {
	case may == "" || token == "Bearer "+may:
	case token == "Bearer "+m.operator || token == "Bearer "+m.gate:
		w.WriteHeader(http.StatusForbidden)
		return
	default:
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if r.URL.Path == "/v1/ledger/lookup" {
		_, _ = w.Write([]byte(`{"state":"none"}`))
		return
	}
	if m.durabilities == "" {
		m.durabilities = `["local"]`
	}
	_, _ = w.Write([]byte(`{"ledger_id":"` + m.ledger + `","durabilities":` + m.durabilities + `,"max_entries":10,"max_result_bytes":1048576,"calls":{}}`))
}
