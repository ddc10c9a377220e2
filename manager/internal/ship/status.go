package ship

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
)

// Status is what a destination has.
type Status struct {
	// Lease of the destination; nil when it has none, and when its object cannot be read: then LeaseDamaged says why.
	Lease        *LeaseStatus `json:"lease"`
	LeaseDamaged string       `json:"lease_damaged,omitempty"`
	// Sequence is the last one that was shipped. Oldest and Newest are the first and
	// the last time to restore to, by the clock of the manager that shipped; zero when nothing can be restored yet.
	Sequence uint64    `json:"sequence"`
	Oldest   time.Time `json:"oldest"`
	Newest   time.Time `json:"newest"`
	// LongestTTL is how long the manager remembers a key at most, LongestWindow how long a named log remembers an id at
	// most, in milliseconds.
	LongestTTL    int64 `json:"longest_ttl_ms"`
	LongestWindow int64 `json:"longest_window_ms"`
	// Histories, Snapshots and Runs that are kept, Tail of them not in the manifest
	// yet, and their Bytes.
	Histories int   `json:"histories"`
	Snapshots int   `json:"snapshots"`
	Runs      int   `json:"runs"`
	Tail      int   `json:"tail"`
	Bytes     int64 `json:"bytes"`
}

// LeaseStatus describes the manager that ships to a destination.
type LeaseStatus struct {
	Term     uint64 `json:"term"`
	Host     string `json:"host"`
	Released bool   `json:"released"`
}

// ReadStatus reads the status of a destination. The error is ErrNothing when it has nothing, and one or more *DamageError
// when what it read is damaged.
func ReadStatus(ctx context.Context, s object.Store) (*Status, error) {
	s = &retrying{Store: s, tries: tries, timeout: tryTimeout}
	st := new(Status)
	b, _, err := s.Get(ctx, leaseObject)
	if err == nil {
		if l, err := decodeLease(b); err != nil {
			st.LeaseDamaged = err.Error()
		} else {
			st.Lease = &LeaseStatus{l.Term, l.Host, l.Released}
		}
	} else if !errors.Is(err, object.ErrNotFound) {
		return nil, err
	}
	m, damaged, tail, err := readShipped(ctx, s)
	if errors.Is(err, object.ErrNotFound) {
		return nil, noManifest(s)
	}
	if err != nil {
		return nil, err
	}
	for _, err := range damaged {
		return nil, err
	}
	st.LongestTTL, st.LongestWindow, st.Tail = m.LongestTTL, m.LongestWindow, tail
	for i := range m.Histories {
		h := &m.Histories[i]
		if h.empty() {
			continue
		}
		st.Histories++
		st.Snapshots += len(h.Snapshots)
		st.Runs += len(h.Runs)
		for _, r := range h.objects() {
			st.Bytes += r.Bytes
		}
		st.Sequence = h.end()
		p := planOf(h, math.MaxInt64)
		if p == nil { // its snapshot is on its way
			continue
		}
		oldest, newest := p.span()
		if st.Oldest.IsZero() || oldest.Before(st.Oldest) {
			st.Oldest = oldest
		}
		if newest.After(st.Newest) {
			st.Newest = newest
		}
	}
	return st, nil
}

// span is the first and the last point in time that the plan's history can be restored to, when the plan is for the newest.
func (p *plan) span() (oldest, newest time.Time) {
	var first, last int64
	if p.base != nil {
		first, last = p.history.Snapshots[0].Time, p.base.Time
	}
	if runs := p.history.Runs; len(runs) > 0 && runs[0].First == 1 {
		first = runs[0].From
	}
	// A snapshot is written while records that it does not have become durable: the times of runs are more exact.
	if n := len(p.runs); n > 0 && (p.base == nil || p.runs[n-1].Last >= p.base.Sequence) {
		last = p.runs[n-1].To
	}
	return time.UnixMilli(first), time.UnixMilli(last)
}
