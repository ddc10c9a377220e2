package gate

import (
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/request"
)

// Clients that prefer 202 to a long wait (respond_async). They look up the answer.

// readPreference reads the header Prefer (RFC 7240): respond-async, and wait in seconds. The gate ignores it where a look-up
// could not name the request.
func (s *Stream) readPreference(headers request.Headers) {
	if path, _ := headers.Get(headerPath); !s.route.RespondAsync || s.rpc || !canBeLost(path) {
		return
	}
	seconds := int64(0)
	for i := range headers {
		if headers[i][0] != "prefer" {
			continue
		}
		eachToken(headers[i][1], func(token string) bool {
			token, _, _ = strings.Cut(token, ";")
			name, value, _ := strings.Cut(token, "=")
			switch request.Lower(trim(name)) {
			case "respond-async":
				s.async = true
			case "wait":
				seconds, _ = parseDecimal(trim(value))
			}
			return true
		})
	}
	// No route waits for more than an hour.
	s.patience = min(min(seconds, 3600)*int64(time.Second), int64(s.route.PendingWait))
}

// canBeLost reports whether a look-up may name a path.
func canBeLost(path string) bool { return api.Visible(path, 1, maxLostPath) && path[0] == '/' }

// lookUpURL returns the path and query of the look-up of the current stream's request.
func (s *Stream) lookUpURL() string {
	const unreserved = "-._~/"
	const digits = "0123456789ABCDEF"
	p := s.plugin
	path, _ := p.host.RequestHeader(headerPath)
	method, _ := p.host.RequestHeader(headerMethod)
	b := append(make([]byte, 0, len(p.config.Lookup)+len(path)+64), p.config.Lookup+"?path="...)
	for i := 0; i < len(path); i++ {
		switch c := path[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte(unreserved, c) >= 0:
			b = append(b, c)
		default:
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
	}
	b = append(b, "&method="+method+"&wait_ms="...)
	return string(strconv.AppendInt(b, int64(s.route.PendingWait/time.Millisecond), 10))
}

// answerEarly answers the client of a call under way if it does not want to wait longer. The call then continues as if the
// client had left.
func (c *carried) answerEarly(now int64) {
	s := c.stream
	if !s.async || c.clientGone || now < s.deadline(now) {
		return
	}
	if c.clientPresent() {
		s.answerPending()
	}
	c.clientGone = true
}
