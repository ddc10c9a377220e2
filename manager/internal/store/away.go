package store

import "time"

// Away is a time in which no manager served: nothing that could have been
// renewed was, so it does not count. From is the last moment at which one is
// known to have served, zero when nobody knows. To is when serving begins again;
// it may lie a little ahead.
type Away struct{ From, To time.Time }

// staleAfter is how much younger than Away.From a record may be. A manager that
// noted no time for longer than that was one which does not know how to.
const staleAfter = 10 * time.Second

// Extend returns when a lease ends that was to end at until, and whether that is
// later: it lasts as long from To as it would have lasted from From. One that was
// over by then stays over. Begun is when the lease was given out, and whole how
// long it lasts from then or from its last renewal; where From is not known, or
// too old to be true of this lease, it gets the whole time again.
func (a Away) Extend(begun, until time.Time, whole time.Duration) (end time.Time, later bool) {
	left := until.Sub(a.From)
	if a.From.IsZero() || begun.Sub(a.From) > staleAfter {
		left = whole
	}
	if left <= 0 {
		return until, false
	}
	end = a.To.Add(left)
	return end, end.After(until)
}

// Leases are records that belong to somebody until a time that they hold, such
// as reservations and jobs that are out.
type Leases struct {
	// Name says what they are, for people: "reservations".
	Name string
	// Index of Collection has those records, in the order of these times.
	Collection Collection
	Index      string
	// Extend writes the record, whose value it gets, again with the time that
	// Away.Extend says, and reports whether there was anything to write. Records
	// that ended or cannot be read are left as they are. The new entry in Index
	// is never before the old one.
	Extend func(tx Tx, key string, value []byte, away Away) (bool, error)
}
