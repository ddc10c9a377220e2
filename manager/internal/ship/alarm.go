package ship

import "time"

// part is what can fail by itself.
type part string

const (
	logPart   part = "log"
	leasePart part = "lease"
)

// trouble records that a part fails, and logs it at most once in alarmEvery.
func (s *Shipper) trouble(p part, err error) {
	s.mu.Lock()
	now := time.Now()
	if s.failing[p].IsZero() {
		s.failing[p] = now
	}
	due := now.Sub(s.alarmed) >= alarmEvery
	if due {
		s.alarmed = now
	}
	since := s.failsSince()
	s.mu.Unlock()
	if due {
		s.opts.Logger.Error("shipping fails; the backlog grows on disk, and requests are answered as usual", "url", s.opts.Store.String(),
			"since_s", int(now.Sub(since).Seconds()), "error", err.Error())
	}
}

// recovered records that parts work, and logs it once all do.
func (s *Shipper) recovered(parts ...part) {
	s.mu.Lock()
	since := s.failsSince()
	for _, p := range parts {
		delete(s.failing, p)
	}
	still := len(s.failing) > 0
	if !still {
		s.alarmed = time.Time{}
	}
	s.mu.Unlock()
	if !since.IsZero() && !still {
		s.opts.Logger.Info("shipping works again", "url", s.opts.Store.String(), "failed_s", int(time.Since(since).Seconds()))
	}
}

// failsSince is the time since which any part fails, zero when none does. The caller holds mu.
func (s *Shipper) failsSince() (since time.Time) {
	for _, at := range s.failing {
		if since.IsZero() || at.Before(since) {
			since = at
		}
	}
	return since
}
