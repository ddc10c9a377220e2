// Package rawurl makes net/http send the path of a request as the filter gave it.
package rawurl

import (
	"net/url"
	"strings"
)

// Of makes the URL of a request to an address. Like Envoy, net/http then sends the path and its query unchanged. There is
// one exception: if the path begins with two slashes, net/http escapes what a URL must not have.
func Of(address, path string) *url.URL {
	u := &url.URL{Scheme: "http", Host: address}
	if strings.HasPrefix(path, "//") {
		// An opaque "//x" would be written as the absolute form "http://x".
		raw, query, hasQuery := strings.Cut(path, "?")
		u.RawPath, u.RawQuery, u.ForceQuery = raw, query, hasQuery && query == ""
		if p, err := url.PathUnescape(raw); err == nil {
			u.Path = p
		} else {
			u.Path = raw
		}
		return u
	}
	u.Opaque = path
	return u
}
