package ship

import "time"

// State is the present state of a shipper.
type State struct {
	// Place is the URL of the destination, without credentials.
	Place string
	// Term of the lease that it holds; 0 while it holds none and ships nothing.
	Term uint64
	// Failing is for how long nothing could be shipped; 0 while shipping works.
	Failing time.Duration
	// Records are durable and not shipped. The oldest has been durable for Age.
	Records uint64
	Age     time.Duration
}

// State returns the shipper's state.
func (s *Shipper) State() State {
	now := time.Now()
	out := State{Place: s.opts.Store.String(), Term: s.Metrics().term.Load()}
	if st := s.stream.Load(); st != nil {
		out.Age, out.Records = st.lag(now)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if since := s.failsSince(); !since.IsZero() {
		out.Failing = now.Sub(since)
	}
	return out
}
