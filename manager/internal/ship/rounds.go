package ship

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// shipAtOnce is how many logs are shipped at the same time.
const shipAtOnce = 4

// part is a group of logs that has a loop of its own.
type part string

const (
	ledgerPart part = "ledger"
	namedPart  part = "named logs" // and their catalog
	leasePart  part = "lease"
)

// has reports whether the part ships the stream.
func (p part) has(st *stream) bool { return (st.named == "") == (p == ledgerPart) }

// ship ships all logs until ctx ends, the shipper is to end, or another manager's manifest shows that the lease
// is lost. The ledger does not wait for named logs.
func (s *Shipper) ship(ctx context.Context, term uint64) {
	s.newTerm()
	ctx, end := context.WithCancel(ctx)
	defer end()
	var named sync.WaitGroup
	begun, begunNamed := make(map[*stream]bool), make(map[*stream]bool)
	defer func() {
		dropUploads(begun)
		dropUploads(begunNamed)
	}()
	named.Go(func() {
		if s.loop(ctx, term, namedPart, begunNamed) {
			end()
		}
	})
	if s.loop(ctx, term, ledgerPart, begun) {
		end()
	}
	named.Wait()
	s.finish(ctx, term, ledgerPart, begun) // its manifest says that there is a catalog
}

// dropUploads closes the snapshots of streams.
func dropUploads(streams map[*stream]bool) {
	for st := range streams {
		st.dropUpload()
	}
}

// loop ships a part, at each interval. begun has the streams that began in this term.
func (s *Shipper) loop(ctx context.Context, term uint64, p part, begun map[*stream]bool) (fenced bool) {
	for {
		unshipped, fenced := s.round(ctx, term, p, begun)
		if fenced || ctx.Err() != nil {
			return fenced
		}
		if !unshipped && !s.pause(ctx, s.opts.Interval) {
			return s.finish(ctx, term, p, begun)
		}
	}
}

// finish ships the last durable records.
func (s *Shipper) finish(ctx context.Context, term uint64, p part, begun map[*stream]bool) (fenced bool) {
	for unshipped := true; unshipped && !fenced && ctx.Err() == nil; {
		unshipped, fenced = s.round(ctx, term, p, begun)
	}
	return fenced
}

// round does one step for each log of a part. unshipped says that a log without an error has more to ship, or that the
// catalog is due.
func (s *Shipper) round(ctx context.Context, term uint64, p part, begun map[*stream]bool) (unshipped, fenced bool) {
	var failed error
	fail := func(label string, err error) {
		if errors.Is(err, errFenced) {
			s.opts.Logger.Warn("this manager lost the shipping lease and no longer ships", "log", label, "error", err.Error())
			fenced = true
		} else if err != nil && failed == nil {
			failed = fmt.Errorf("log %s: %w", label, err)
		}
	}
	ending := false
	select {
	case <-s.quit:
		ending = true
	default:
	}
	var catalogErr error
	if p == namedPart {
		catalogErr = s.syncCatalog(ctx, term)
	}
	if fail(catalogObject, catalogErr); fenced {
		return false, true
	}
	var streams []*stream
	for _, st := range s.all() {
		if p.has(st) && st.prefix != "" {
			streams = append(streams, st)
		}
	}
	errs, began := make([]error, len(streams)), make([]bool, len(streams))
	turn := make(chan struct{}, shipAtOnce)
	var wg sync.WaitGroup
	for i, st := range streams {
		began[i] = begun[st]
		turn <- struct{}{}
		wg.Go(func() {
			defer func() { <-turn }()
			if !began[i] {
				errs[i] = st.begin(ctx, term)
				began[i] = errs[i] == nil
			}
			if errs[i] == nil {
				errs[i] = st.step(ctx, ending)
			}
			if errors.Is(errs[i], errTooMany) { // the next round begins it
				errs[i] = nil
				return
			}
			if errs[i] == nil && !st.unshipped && !st.broken {
				st.ready = true
			}
		})
	}
	wg.Wait()
	for i, st := range streams {
		begun[st] = began[i]
		if st.named != "" && errs[i] != nil && !slices.Contains(s.all(), st) {
			continue // it was deleted meanwhile
		}
		fail(st.label, errs[i])
		unshipped = unshipped || errs[i] == nil && (st.unshipped || st.uploading)
	}
	for st := range begun {
		if !slices.Contains(streams, st) { // it was deleted
			st.dropUpload()
			delete(begun, st)
		}
	}
	if p == namedPart && catalogErr == nil && !fenced {
		if !ending { // it has no time for it
			fail(catalogObject, s.collectGone(ctx, term))
		}
		unshipped = unshipped || s.catalogDue()
	}
	if fenced {
		return false, true
	}
	if failed == nil {
		s.recovered(p)
	} else if ctx.Err() == nil {
		s.trouble(p, failed)
	}
	return unshipped, false
}
