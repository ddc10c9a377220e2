package peers

import (
	"cmp"
	"fmt"
	"time"
)

// Status is how far this data centre is behind a peer.
type Status struct {
	Name, URL string
	// LagSeconds is for how long it has not read everything, LagEntries how many changes it lacks as far as it knows. Those
	// that had no room are among them.
	LagSeconds float64
	LagEntries uint64
	// Answered is when the peer last answered this manager, zero if it has not.
	Answered time.Time
	// Said is what the peer said last about its list of data centres, "" if it has not.
	Said string
	// Error is why the last call failed, or why outcomes are missing although it did not; "" when all is well.
	Error string
	// Repaired outcomes were found by comparing digests since the manager's start, Copies are full copies. Refused counts
	// each time that an outcome was refused.
	Repaired, Copies, Failures, Refused uint64
}

// lacks says why outcomes are missing although calls succeed, "" while none is. The caller holds mu.
func (s *state) lacks() string {
	if s.refusal == "" && s.missing > 0 {
		return fmt.Sprintf("%d outcomes of the peer are not kept here: the window is full, or they lost conflicts beyond what is kept", s.missing)
	}
	return s.refusal
}

// Status returns how far this data centre is behind each peer.
func (p *Puller) Status() []Status {
	all := make([]Status, len(p.states))
	for i, s := range p.states {
		s.mu.Lock()
		st := Status{Name: s.peer.Name, URL: s.peer.URL, Error: cmp.Or(s.fenced, s.err, s.checkErr, s.lacks()), LagEntries: s.record.Head - min(s.record.Head, s.record.Sequence) + s.missing, Answered: s.answered, Said: s.record.Said}
		// A call that waits for something new lacks nothing, unless the peer holds it for longer than it was asked to.
		waits := time.Now().Before(s.until)
		if st.LagEntries > 0 || !waits || s.err != "" {
			if lag := time.Since(s.caughtUp); lag > pullWait || st.LagEntries > 0 || s.err != "" {
				st.LagSeconds = lag.Seconds()
			}
		}
		s.mu.Unlock()
		st.Repaired, st.Copies, st.Failures, st.Refused = s.repaired.Load(), s.copies.Load(), s.failures.Load(), s.refused.Load()
		all[i] = st
	}
	return all
}
