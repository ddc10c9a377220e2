package httpd

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
)

// What browsers bring that the person in front of them did not ask for. Every page of every site may send requests to
// addresses that only the person's machine reaches, such as the loopback address of a manager that asks for no token.

var origins = http.NewCrossOriginProtection()

// crossSite reports whether a page of another site made a browser send the request. A request with the header
// authorization cannot be one: a browser asks first before it sends such a header to another site, and is refused. The
// same holds for the headers that a proxy adds. What a proxy passes on may come from any page; that is the proxy's to
// judge.
func (s *source) crossSite() bool {
	h := s.r.Header
	if len(h["Sec-Fetch-Site"]) == 0 && len(h["Origin"]) == 0 || len(h["Authorization"]) > 0 || len(h["X-Forwarded-Proto"]) > 0 || len(h["X-Request-Id"]) > 0 {
		return false
	}
	return origins.Check(s.r) != nil
}

func foreignPage() *api.Problem {
	return &api.Problem{
		Status: http.StatusForbidden, Code: api.CodeForbidden, Title: "Forbidden",
		Detail: "a page of another site made a browser send this request, and it carries no token",
	}
}

// OwnName reports whether a browser that reached the manager by this host is on the manager's own pages. Without that
// check, a site whose name leads to the manager's address could read and change everything through the browser of a
// person who visits it: browsers identify sites by name. Such a site needs a name in the public DNS, which IP
// addresses, localhost and names without a dot are not. names are further ones of the manager.
func OwnName(host string, names []string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), "."))
	if _, err := netip.ParseAddr(host); err == nil || !strings.Contains(host, ".") || strings.HasSuffix(host, ".localhost") {
		return true
	}
	return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, host) })
}

// errForeign is why ownPages refuses a request.
var errForeign = errors.New("browsers may open this only from the manager's own pages, under an IP address, localhost, a name without a dot, or the name in --admin")

// ownPages keeps pages of other sites away from a handler that asks for no credentials. Only browsers are refused: they
// say which languages they prefer, and scrapers and curl do not. A page cannot leave that header away.
func ownPages(next http.Handler, names []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		site := r.Header.Get("Sec-Fetch-Site")
		browser := site != "" || len(r.Header["Origin"]) > 0 || len(r.Header["Accept-Language"]) > 0
		switch {
		case browser && !OwnName(r.Host, names):
			http.Error(w, errForeign.Error(), http.StatusMisdirectedRequest)
		case site == "cross-site" || site == "same-site":
			http.Error(w, errForeign.Error(), http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}
