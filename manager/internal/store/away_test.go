package store

import (
	"testing"
	"time"
)

// A lease has at least as much time from the end of a downtime as it had left, also after its end became whole milliseconds.
func TestAwayExtendsALease(t *testing.T) {
	at := func(d time.Duration) time.Time { return time.Unix(1000, 0).Add(d) }
	const ms = time.Millisecond
	for _, c := range []struct {
		from, to, begun, until, whole, want time.Duration
		later                               bool
	}{
		{from: 100 * ms, to: 900 * ms, until: 150 * ms, want: 950 * ms, later: true},
		{from: 100 * ms, to: 900*ms + 1, until: 150 * ms, want: 951 * ms, later: true},
		{from: 100*ms - 1, to: 900 * ms, until: 150 * ms, want: 951 * ms, later: true},
		{from: 100 * ms, to: 900 * ms, until: 100 * ms, want: 100 * ms},
		{from: 900 * ms, to: 100 * ms, until: 1000 * ms, want: 200 * ms},
		{from: 0, to: 20000 * ms, begun: 10001 * ms, until: 10100 * ms, whole: 99 * ms, want: 20099 * ms, later: true},
	} {
		end, later := Away{From: at(c.from), To: at(c.to)}.Extend(at(c.begun), at(c.until), c.whole)
		if end != at(c.want) || later != c.later {
			t.Errorf("%+v: %v, %v", c, end.Sub(at(0)), later)
		}
	}
}
