package gate

import (
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/internal/jsonguard"
)

// Clients of an Iceberg catalog send keys only if the catalog's configuration says how long it remembers them. The gate adds
// that to the answer of a catalog that does not say it itself.

// maxLifetimeBytes bounds the answers that the gate reads for it, so that the host can collect them. Others pass as they are.
const maxLifetimeBytes = 64 << 10

// beginLifetime looks whether the current request's answer must say how long keys are remembered.
func (s *Stream) beginLifetime(path string) {
	route := s.plugin.config.Lifetime(path)
	if route == nil {
		return
	}
	s.lifetime, s.phase = route, phaseLifetime
	s.plugin.host.RemoveRequestHeader(headerAcceptEncoding)
}

// readLifetimeHeaders leaves alone all answers but those that are JSON.
func (s *Stream) readLifetimeHeaders(end bool) {
	s.setStatusHeader()
	host := s.plugin.host
	status, _ := host.ResponseHeader(headerStatus)
	contentType, _ := host.ResponseHeader(headerContentType)
	_, coded := host.ResponseHeader(headerContentEncoding)
	text, _ := host.ResponseHeader(headerContentLength)
	length, _ := parseDecimal(text)
	if end || status != "200" || coded || mediaType(contentType) != "application/json" || length > maxLifetimeBytes {
		s.phase = phasePass
		return
	}
	host.RemoveResponseHeader(headerContentLength)
}

// addLifetime lets the host collect the body, and completes it at its end. size is what the host has of it.
func (s *Stream) addLifetime(size int, end bool) Action {
	host := s.plugin.host
	switch {
	case size > maxLifetimeBytes:
	case !end:
		return Collect
	default:
		if body := host.ResponseBody(size); len(body) == size {
			host.ReplaceResponseBody(withLifetime(body, s.lifetime))
		}
	}
	s.phase = phasePass
	return Continue
}

// withLifetime returns a JSON object with the lifetime of the route's keys, unless it has one.
func withLifetime(body []byte, route *config.Route) []byte {
	if !jsonguard.Valid(body) {
		return body
	}
	object := gjson.ParseBytes(body)
	if !object.IsObject() || object.Get(config.LifetimeMember).Exists() {
		return body
	}
	at := 0
	for body[at] != '{' {
		at++
	}
	member := `"` + config.LifetimeMember + `":"PT` + strconv.FormatInt(int64(route.CommittedTTL)/second, 10) + `S"`
	empty := true
	object.ForEach(func(gjson.Result, gjson.Result) bool {
		empty = false
		return false
	})
	if !empty {
		member += ","
	}
	out := append(make([]byte, 0, len(body)+len(member)), body[:at+1]...)
	return append(append(out, member...), body[at+1:]...)
}
