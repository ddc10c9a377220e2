package proxy

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/oncegate/oncegate/hostsim"
)

// maxHeaderCount is Envoy's max_headers_count.
const maxHeaderCount = 100

// refusal is an answer of the proxy before there is a stream, like those of Envoy's codec and connection manager.
type refusal struct {
	status int
	text   string
}

// requestHeaders converts a parsed request to the header map for the host, which adds x-request-id and
// x-forwarded-proto if they are missing. If the request must be refused, it returns the reason.
func requestHeaders(r *http.Request) (hostsim.Headers, *refusal) {
	if !r.ProtoAtLeast(1, 1) {
		return nil, &refusal{http.StatusUpgradeRequired, "HTTP/1.0 is not served; use HTTP/1.1"}
	}
	if r.Method == http.MethodConnect {
		return nil, &refusal{http.StatusForbidden, "CONNECT is not served"}
	}
	listed := connectionTokens(r.Header)
	for _, name := range listed {
		if reservedFromConnection(name) {
			return nil, &refusal{http.StatusBadRequest, fmt.Sprintf("connection: %q must not be listed", name)}
		}
	}
	if slices.Contains(listed, "upgrade") {
		if up := r.Header.Get("Upgrade"); up != "" && !strings.EqualFold(up, "h2c") {
			return nil, &refusal{http.StatusForbidden, "upgrade is not served"}
		}
	}
	path := r.RequestURI
	if r.URL.IsAbs() { // absolute-form: the authority comes from the target
		path = r.URL.RequestURI()
	}
	if strings.Contains(path, "#") {
		return nil, &refusal{http.StatusBadRequest, "path: a fragment is not allowed"}
	}

	received := hostsim.HeadersOf(r.Header)
	if len(received) > maxHeaderCount {
		return nil, &refusal{http.StatusRequestHeaderFieldsTooLarge,
			fmt.Sprintf("headers: %d are more than %d", len(received), maxHeaderCount)}
	}
	scheme := "http"
	if s := strings.ToLower(r.Header.Get("X-Forwarded-Proto")); s == "https" {
		scheme = s
	}
	h := make(hostsim.Headers, 0, len(received)+6)
	h.Add(":authority", r.Host)
	h.Add(":path", path)
	h.Add(":method", r.Method)
	h.Add(":scheme", scheme)
	for _, p := range received {
		switch name := p[0]; {
		case hopByHop(name), name == "host", slices.Contains(listed, name):
		case name == "expect": // answered by the server
		case name == "te":
			if !h.Has("te") && containsToken(r.Header["Te"], "trailers") {
				h.Add("te", "trailers")
			}
		default:
			h.Add(name, p[1])
		}
	}
	if names := trailerNames(r.Trailer); names != "" {
		h.Add("trailer", names)
	}
	return h, nil
}

// responseHeaders returns an upstream answer's headers as the filter sees them: Envoy removes hop-by-hop headers only
// behind the filters.
func responseHeaders(resp *http.Response, serviceMillis int64) hostsim.Headers {
	h := append(hostsim.H(":status", strconv.Itoa(resp.StatusCode)), hostsim.HeadersOf(resp.Header)...)
	for _, te := range resp.TransferEncoding {
		h.Add("transfer-encoding", te)
	}
	if names := trailerNames(resp.Trailer); names != "" {
		h.Add("trailer", names)
	}
	h.Set("x-envoy-upstream-service-time", strconv.FormatInt(serviceMillis, 10))
	return h
}

// writeResponseHeaders fills w's header map for the client.
func writeResponseHeaders(dst http.Header, h hostsim.Headers) {
	var listed []string
	for _, v := range h.Values("connection") {
		listed = appendTokens(listed, v)
	}
	for _, p := range h {
		name := p[0]
		if strings.HasPrefix(name, ":") || hopByHop(name) || slices.Contains(listed, name) {
			continue
		}
		key := http.CanonicalHeaderKey(name)
		dst[key] = append(dst[key], p[1])
	}
	if _, ok := dst["Content-Type"]; !ok {
		dst["Content-Type"] = nil // net/http would guess one
	}
	dst["Server"] = []string{"oncegate-gateway"}
}

// hopByHop reports whether a header concerns only one connection.
func hopByHop(lower string) bool {
	switch lower {
	case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade":
		return true
	}
	return false
}

// reservedFromConnection recognizes headers that a client must not remove by listing them in Connection, because the
// proxy or the hops behind it rely on them.
func reservedFromConnection(lower string) bool {
	return lower == "host" || lower == "content-length" || strings.HasPrefix(lower, ":") ||
		strings.HasPrefix(lower, "x-forwarded-")
}

func connectionTokens(h http.Header) []string {
	var out []string
	for _, v := range h["Connection"] {
		out = appendTokens(out, v)
	}
	return out
}

func appendTokens(dst []string, list string) []string {
	for t := range strings.SplitSeq(list, ",") {
		if t = strings.ToLower(strings.TrimSpace(t)); t != "" {
			dst = append(dst, t)
		}
	}
	return dst
}

func containsToken(values []string, token string) bool {
	for _, v := range values {
		for t := range strings.SplitSeq(v, ",") {
			name, _, _ := strings.Cut(t, ";")
			if strings.EqualFold(strings.TrimSpace(name), token) {
				return true
			}
		}
	}
	return false
}

func trailerNames(t http.Header) string {
	return strings.ToLower(strings.Join(slices.Sorted(maps.Keys(t)), ","))
}
