package gate

import (
	"time"

	"github.com/oncegate/oncegate/plugin/config"
)

// What the route's response settings leave out of records and replays.

// recordHead records an answer without its body, which replays do not have either.
func (s *Stream) recordHead() {
	a := &s.answer
	kept := a.headers[:0]
	for _, h := range a.headers {
		if _, trailer := recordedTrailer(h.Name); !trailer && !describesBody(h.Name) {
			kept = append(kept, h)
		}
	}
	a.headers = kept
	a.addHeader(headerBody, omitted)
	s.recordOutcome(nil, false)
}

// noteDate adds the date to an answer that has none.
func (s *Stream) noteDate() {
	if !s.route.Response.Keeps(config.OriginalDate) {
		return
	}
	for i := range s.answer.headers {
		if s.answer.headers[i].Name == config.OriginalDate {
			return
		}
	}
	s.answer.addHeader(config.OriginalDate, httpDate(s.plugin.host.Now()))
}

// replays reports whether a replay has a header of the record. The settings may have changed since the
// record was made. bare: the replay leaves out the record's body.
func (s *Stream) replays(name string, bare bool) bool {
	switch {
	case name == headerTrailers, name == headerBody:
		return true
	case name == s.route.ReplayHeader, bare && describesBody(name):
		return false
	}
	return s.route.Response.Keeps(name)
}

func describesBody(name string) bool {
	return name == headerContentType || name == headerContentEncoding
}

// httpDate formats nanoseconds since 1970 as HTTP does: Thu, 01 Jan 1970 00:00:00 GMT.
func httpDate(ns int64) string {
	t := time.Unix(ns/second, 0).UTC()
	year, month, day := t.Date()
	hour, minute, sec := t.Clock()
	b := make([]byte, 0, len("Thu, 01 Jan 1970 00:00:00 GMT"))
	b = append(b, "SunMonTueWedThuFriSat"[3*t.Weekday():][:3]...)
	b = append(b, ", "...)
	b = append(twoDigits(b, day), ' ')
	b = append(b, "JanFebMarAprMayJunJulAugSepOctNovDec"[3*(month-1):][:3]...)
	b = append(b, ' ')
	b = append(twoDigits(twoDigits(b, year/100), year%100), ' ')
	b = append(twoDigits(b, hour), ':')
	b = append(twoDigits(b, minute), ':')
	return string(append(twoDigits(b, sec), " GMT"...))
}

// twoDigits appends the last two digits of n.
func twoDigits(b []byte, n int) []byte { return append(b, byte('0'+n/10%10), byte('0'+n%10)) }
