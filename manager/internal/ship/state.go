package ship

import "time"

// State is the present state of a shipper.
type State struct {
	// Place is the URL of the destination, without credentials.
	Place string
	// Term of the lease that it holds; 0 while it holds none and ships nothing.
	Term uint64
	// Failing is for how long any part could not be shipped; 0 while shipping works.
	Failing time.Duration
	// Logs that it ships.
	Logs []Lag
}

// Lag is the part of a log that is not shipped yet.
type Lag struct {
	Log string
	// Records that are durable and not shipped. The oldest has been durable for Age.
	Records uint64
	Age     time.Duration
}

// State returns the shipper's state.
func (s *Shipper) State() State {
	now := time.Now()
	out := State{Place: s.opts.Store.String(), Term: s.Metrics().term.Load()}
	for _, st := range s.all() {
		age, records := st.lag(now)
		out.Logs = append(out.Logs, Lag{Log: st.label, Records: uint64(records), Age: age})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if since := s.failsSince(); !since.IsZero() {
		out.Failing = now.Sub(since)
	}
	return out
}
