package ship

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
)

// Status is what a place holds.
type Status struct {
	// Lease of the place; nil when nobody ever held it.
	Lease *LeaseStatus `json:"lease"`
	// Log is the name of the log that the rest is about.
	Log string `json:"log"`
	// Sequence is the last one that was shipped; Oldest and Newest are the first and
	// the last point in time to restore to, by the clock of the manager that shipped.
	Sequence uint64    `json:"sequence"`
	Oldest   time.Time `json:"oldest"`
	Newest   time.Time `json:"newest"`
	// LongestTTL is how long the manager remembers a key at most, in milliseconds.
	LongestTTL int64 `json:"longest_ttl_ms"`
	// Histories, Snapshots and Runs that are kept, Tail of them not in the manifest
	// yet, and their Bytes.
	Histories int   `json:"histories"`
	Snapshots int   `json:"snapshots"`
	Runs      int   `json:"runs"`
	Tail      int   `json:"tail"`
	Bytes     int64 `json:"bytes"`
}

// LeaseStatus is who ships to a place.
type LeaseStatus struct {
	Term     uint64 `json:"term"`
	Host     string `json:"host"`
	Released bool   `json:"released"`
}

// ReadStatus reads what a place holds of a log; empty means LedgerLog. ErrNothing when
// there is nothing.
func ReadStatus(ctx context.Context, s object.Store, log string) (*Status, error) {
	if log == "" {
		log = LedgerLog
	}
	s = &retrying{Store: s, tries: tries, timeout: tryTimeout}
	st := &Status{Log: log}
	b, _, err := s.Get(ctx, leaseObject)
	if err == nil {
		var l leaseRecord
		if err := json.Unmarshal(b, &l); err != nil {
			return nil, &DamageError{leaseObject, err.Error()}
		}
		st.Lease = &LeaseStatus{l.Term, l.Host, l.Released}
	} else if !errors.Is(err, object.ErrNotFound) {
		return nil, err
	}
	m, damaged, tail, err := readPlace(ctx, s, log)
	if errors.Is(err, object.ErrNotFound) {
		return nil, fmt.Errorf("%w: %s has no shipped log %s", ErrNothing, s, log)
	}
	if err != nil {
		return nil, err
	}
	for _, err := range damaged {
		return nil, err
	}
	st.LongestTTL, st.Tail = m.LongestTTL, tail
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
		oldest, newest := h.span()
		if st.Oldest.IsZero() || oldest.Before(st.Oldest) {
			st.Oldest = oldest
		}
		if newest.After(st.Newest) {
			st.Newest = newest
		}
		st.Sequence = h.end()
	}
	return st, nil
}

// span is the first and the last point in time that a history can be restored to.
func (h *history) span() (oldest, newest time.Time) {
	var first, last int64
	if n := len(h.Snapshots); n > 0 {
		first, last = h.Snapshots[0].Time, h.Snapshots[n-1].Time
	}
	if n := len(h.Runs); n > 0 {
		if h.Runs[0].First == 1 || first == 0 {
			first = h.Runs[0].From
		}
		// A snapshot is written while records that it does not have become durable: runs tell more exactly.
		if s := len(h.Snapshots); s == 0 || h.Runs[n-1].Last >= h.Snapshots[s-1].Sequence {
			last = h.Runs[n-1].To
		}
	}
	return time.UnixMilli(first), time.UnixMilli(last)
}
