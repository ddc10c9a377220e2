package ship

import (
	"context"
	"errors"
)

// ship ships the log at each interval until ctx ends, the shipper is to end, or another manager's manifest shows that the
// lease is lost.
func (s *Shipper) ship(ctx context.Context, term uint64) {
	st := s.stream.Load()
	st.claimed = false
	defer st.dropUpload()
	begun, ending := false, false
	for {
		unshipped, fenced := s.round(ctx, term, &begun, ending)
		if fenced || ctx.Err() != nil || ending && !unshipped {
			return
		}
		if !ending && !unshipped {
			s.pause(ctx, s.opts.Interval)
		}
		select {
		case <-s.quit:
			ending = true // the next rounds ship the last durable records
		default:
		}
	}
}

// round does one step. unshipped says that it had no error and there is more to ship. begun says that the stream began in
// this term.
func (s *Shipper) round(ctx context.Context, term uint64, begun *bool, ending bool) (unshipped, fenced bool) {
	st := s.stream.Load()
	var err error
	if !*begun {
		err = st.begin(ctx, term)
		*begun = err == nil
	}
	if err == nil {
		err = st.step(ctx, ending)
	}
	switch {
	case errors.Is(err, errFenced):
		s.opts.Logger.Warn("this manager lost the shipping lease and no longer ships", "error", err.Error())
		return false, true
	case err == nil:
		s.recovered(logPart)
		return st.unshipped || st.uploading, false
	case ctx.Err() == nil:
		s.trouble(logPart, err)
	}
	return false, false
}
