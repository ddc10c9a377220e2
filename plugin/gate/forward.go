package gate

import (
	"encoding/hex"
	"strconv"

	"github.com/oncegate/oncegate/plugin/cache"
	"github.com/oncegate/oncegate/plugin/config"
)

// What the gate says to upstream about a request (the route's forward).

// forwardHeaders returns the headers of forward with their values; "": upstream must not get the header. The client's
// own headers of these names never reach upstream, because upstream trusts them.
func (s *Stream) forwardHeaders() [4][2]string {
	f := &s.route.Forward
	list := [4][2]string{{f.KeyHeader, s.key}, {f.AttemptHeader}, {f.TokenHeader}, {f.ScopeHeader}}
	if s.key == "" && f.KeyHeader == s.route.Key.Header {
		list[0][0] = "" // the gate has not read the key, so it leaves the client's
	}
	if s.mark == statusExecuted && s.token != (cache.Token{}) {
		list[1][1] = strconv.FormatInt(s.reservedAt/1e3, 10)
		list[2][1] = hex.EncodeToString(s.token[:])
		list[3][1] = s.scope.String()
	}
	return list
}

// setForwardHeaders sets these headers on the current stream's request, which is about to be released.
func (s *Stream) setForwardHeaders() {
	if s.route == nil || s.route.Forward == (config.Forward{}) {
		return
	}
	for _, h := range s.forwardHeaders() {
		switch {
		case h[0] == "":
		case h[1] == "":
			s.plugin.host.RemoveRequestHeader(h[0])
		default:
			s.plugin.host.SetRequestHeader(h[0], h[1])
		}
	}
}

// tellCarried does so for the headers of the gate's own upstream call.
func (s *Stream) tellCarried(headers [][2]string) [][2]string {
	if s.route.Forward == (config.Forward{}) {
		return headers
	}
	list := s.forwardHeaders()
	kept := headers[:0]
	for _, h := range headers {
		if h[0] != list[0][0] && h[0] != list[1][0] && h[0] != list[2][0] && h[0] != list[3][0] {
			kept = append(kept, h)
		}
	}
	for _, h := range list {
		if h[0] != "" && h[1] != "" {
			kept = append(kept, h)
		}
	}
	return kept
}
