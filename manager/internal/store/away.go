package store

import "time"

// Away is a time in which no manager served. Nothing could be renewed during it, so it does not count against a lease.
// From is the last moment at which a manager is known to have served, zero if unknown. To is when serving begins again,
// and may be in the future.
type Away struct{ From, To time.Time }

// staleAfter is how much later than Away.From a lease may have begun. A lease that began later is the first after an
// idle time, in which nobody records the time. From says nothing about it.
const staleAfter = 10 * time.Second

// Extend returns the new end of a lease that would have ended at until, and whether that is later. The lease gets as
// much time from To as it had left at From. A lease that was over at From stays over. begun is when the lease was given
// out, and whole is how long it lasts from then or from its last renewal. If From is unknown, or too old to apply to
// this lease, the lease gets its whole time again.
func (a Away) Extend(begun, until time.Time, whole time.Duration) (end time.Time, later bool) {
	left := until.Sub(a.From)
	if a.From.IsZero() || begun.Sub(a.From) > staleAfter {
		left = whole
	}
	if left <= 0 {
		return until, false
	}
	end = a.To.Add(left)
	// Records have whole milliseconds. Without rounding up, each extension would cost the lease a part of one.
	if part := time.Duration(end.Nanosecond()) % time.Millisecond; part != 0 {
		end = end.Add(time.Millisecond - part)
	}
	return end, end.After(until)
}

// Leases describes records that have a holder until a time stored in them, such as reservations and claimed jobs.
type Leases struct {
	// Name is what people call them: "reservations".
	Name string
	// Index of Collection has those records in the order of their end times.
	Collection Collection
	Index      string
	// Extend writes a record again with the end that Away.Extend returns, and reports whether it wrote anything. value
	// is the record's value. Extend leaves records that ended or cannot be read unchanged. The new entry in Index is
	// never before the old one.
	Extend func(tx Tx, key string, value []byte, away Away) (bool, error)
}
