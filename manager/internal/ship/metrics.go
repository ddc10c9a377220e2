package ship

import (
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/scrape"
)

// counters are what a Shipper counts.
type counters struct {
	term           atomic.Uint64 // of the lease that it holds, 0 while it holds none
	objects, bytes atomic.Uint64 // that were written
	errors         atomic.Uint64 // tries that failed
	gaps           atomic.Uint64
}

func (c *counters) shipped(bytes int64) {
	c.bytes.Add(uint64(bytes))
	c.objects.Add(1)
}

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
	out := State{Place: s.opts.Store.String(), Term: s.opts.counters.term.Load()}
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

// Metrics returns the shipper's metrics, to be registered.
func (s *Shipper) Metrics() *scrape.Collector {
	return scrape.New(func(m scrape.Sample) error {
		now, count := s.State(), s.opts.counters
		scrape.Set(m, "oncegate_ship_lease_term", now.Term)
		if s.stream.Load() != nil {
			scrape.Set(m, "oncegate_ship_lag_seconds", now.Age.Seconds())
			scrape.Set(m, "oncegate_ship_lag_records", now.Records)
		}
		scrape.Set(m, "oncegate_ship_failing_seconds", now.Failing.Seconds())
		scrape.Set(m, "oncegate_ship_objects_total", count.objects.Load())
		scrape.Set(m, "oncegate_ship_bytes_total", count.bytes.Load())
		scrape.Set(m, "oncegate_ship_errors_total", count.errors.Load())
		scrape.Set(m, "oncegate_ship_gaps_total", count.gaps.Load())
		return nil
	},
		scrape.Describe("oncegate_ship_lease_term", "Term of the shipping lease that this manager holds; 0 while it holds none and ships nothing."),
		scrape.Describe("oncegate_ship_lag_seconds", "For how long the oldest durable record that is not shipped has waited."),
		scrape.Describe("oncegate_ship_lag_records", "Durable records that are not shipped yet."),
		scrape.Describe("oncegate_ship_failing_seconds", "For how long nothing could be shipped; 0 while shipping works."),
		scrape.Describe("oncegate_ship_objects_total", "Objects with records that were written."),
		scrape.Describe("oncegate_ship_bytes_total", "Bytes of the objects with records that were written."),
		scrape.Describe("oncegate_ship_errors_total", "Requests to the object store that failed and were tried again or given up."),
		scrape.Describe("oncegate_ship_gaps_total", "How often records were not shipped before a snapshot replaced them."))
}
