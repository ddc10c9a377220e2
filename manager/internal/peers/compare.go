package peers

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/oncegate/oncegate/manager/internal/feed"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// check is what one comparison of digests leaves for the next one.
type check struct {
	// seen are the differences of the last comparison, by the beginning of their spans. A difference that is still the
	// same is no outcome under way. done: it was repaired, and what is left is what this data centre cannot have.
	seen map[int64]difference
}

type difference struct {
	theirs, mine uint64
	missing      int // how many more the peer has
	done         bool
	// refused outcomes are among what is left. until is when one of them may be imported; zero: that is not known.
	refused bool
	until   time.Time
}

// mayCompare reports whether it is time for a comparison, and nothing else is missing.
func (p *Puller) mayCompare(s *state) bool {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.comparing || s.record.Sequence < s.record.Head || s.record.Cursor == "" || now.Before(s.nextCheck) {
		return false
	}
	s.comparing, s.nextCheck = true, now.Add(p.opts.CheckEvery)
	return true
}

// noteCompared notes that a comparison has ended.
func (p *Puller) noteCompared(s *state, err error) {
	text := ""
	if err != nil {
		text = err.Error()
		s.failures.Add(1)
	}
	s.mu.Lock()
	was := s.checkErr
	s.comparing, s.checkErr = false, text
	s.mu.Unlock()
	if was == "" && err != nil && !errors.Is(err, context.Canceled) {
		p.opts.Log.Warn("comparing outcomes with a peer failed; retrying", "peer", s.peer.Name, "url", s.peer.URL, "error", text)
	}
}

// differences returns the spans of which a peer holds other outcomes of an origin than this data centre, by their
// beginnings. span is the length of each in milliseconds.
func (p *Puller) differences(ctx context.Context, s *state, origin string) (span int64, all map[int64]difference, err error) {
	body, status, _, err := p.call(ctx, s, "/v1/ledger/digests", url.Values{"origin": {origin}}, pullTime)
	if err != nil {
		return 0, nil, err
	}
	if status != http.StatusOK {
		return 0, nil, problem(body, status)
	}
	span, theirs, err := parseDigests(body)
	if err != nil {
		return 0, nil, err
	}
	own, _, err := p.opts.Feed.Digests(ctx, origin, span)
	if err != nil {
		return 0, nil, err
	}
	mine := make(map[int64]feed.Digest, len(own))
	for _, d := range own {
		mine[d.From] = d
	}
	all = make(map[int64]difference)
	for _, d := range theirs {
		if m := mine[d.From]; m.Sum != d.Sum {
			all[d.From] = difference{theirs: d.Sum, mine: m.Sum, missing: max(0, d.Outcomes-m.Outcomes)}
		}
	}
	return span, all, nil
}

// compare finds what a lost page of the feed held, and imports it. In a quarantine it also gets back what the peer holds of
// this data centre's outcomes.
func (p *Puller) compare(ctx context.Context, s *state) error {
	if p.opts.Self != nil && p.opts.Self.Left() > 0 {
		if err := p.recoverOwn(ctx, s); err != nil {
			return err
		}
	}
	span, differs, err := p.differences(ctx, s, s.peer.Name)
	if err != nil {
		return err
	}
	seen, settled, missing := make(map[int64]difference), true, 0
	for _, from := range slices.Sorted(maps.Keys(differs)) { // a simulation is the same each time
		diff := differs[from]
		if last := s.check.seen[from]; last.theirs == diff.theirs && last.mine == diff.mine {
			if last.done {
				missing += diff.missing
			}
			if diff = last; !last.done || !last.until.IsZero() && time.Now().After(last.until) {
				left, err := p.repair(ctx, s, from, from+span)
				if err != nil {
					return err
				}
				diff.done, diff.refused, diff.until = left.Deferred == 0, left.Refused > 0, left.Until
			}
		}
		seen[from] = diff
		settled = settled && diff.done && !diff.refused
	}
	s.check.seen = seen
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missing = uint64(missing)
	if settled {
		s.refusal = ""
	}
	return nil
}

// repair imports all outcomes that a peer recorded in a span. left counts what must be imported later, and what was
// refused. Pages of the feed are imported meanwhile, so it counts only what its own imports did.
func (p *Puller) repair(ctx context.Context, s *state, from, to int64) (left ledger.Imported, err error) {
	defer func() { // also before an error: what is imported is not counted again
		if left.New > 0 {
			s.repaired.Add(uint64(left.New))
			p.opts.Log.Warn("outcomes that a peer's feed had lost were imported", "peer", s.peer.Name, "outcomes", left.New)
		}
		p.noteRefused(s, left)
	}()
	err = p.span(ctx, s, s.peer.Name, from, to, func(changes []ledger.FeedChange) error {
		done, err := p.opts.Feed.Import(ctx, changes, nil)
		left.Add(done)
		left.Deferred -= len(done.Notes)
		if err != nil || len(done.Notes) == 0 {
			return err
		}
		settled, err := p.settle(ctx, s, done.Notes)
		left.New += settled.New
		left.Deferred += settled.Deferred
		return err
	})
	return left, err
}

// noteRefused notes changes that the ledger refused. Nothing of them is stored, and the feed continues.
func (p *Puller) noteRefused(s *state, r ledger.Imported) {
	if r.Refused == 0 {
		return
	}
	s.refused.Add(uint64(r.Refused))
	text := "an outcome of the peer was refused: " + r.Why.Error()
	s.mu.Lock()
	was := s.refusal
	s.refusal = text
	s.mu.Unlock()
	if was == "" {
		p.opts.Log.Error("outcomes of a peer are refused, and retries of their keys may run again here", "peer", s.peer.Name, "url", s.peer.URL, "error", r.Why.Error())
	}
}
