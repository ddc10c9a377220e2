package ship

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
)

// Status is what a destination has of one log, and with LedgerLog of the named logs.
type Status struct {
	// Lease of the destination; nil when it has none, and when its object cannot be read: then LeaseDamaged says why.
	Lease        *LeaseStatus `json:"lease"`
	LeaseDamaged string       `json:"lease_damaged,omitempty"`
	// Log is the name of the log that the rest is about.
	Log string `json:"log"`
	LogStatus
	// Logs are the named logs that the destination has, including deleted ones.
	Logs []NamedStatus `json:"logs,omitempty"`
}

// LogStatus is what a destination has of a log.
type LogStatus struct {
	// Sequence is the last one that was shipped. Oldest and Newest are the first and
	// the last time to restore to, by the clock of the manager that shipped; zero when nothing can be restored yet.
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

// NamedStatus is what was shipped of a named log, from when it was made until it was deleted.
type NamedStatus struct {
	Name string `json:"name"`
	// Prefix is the first part of its objects' names.
	Prefix string `json:"prefix"`
	// Made is the first time that it can be restored to, Deleted when it was deleted.
	Made    time.Time  `json:"made"`
	Deleted *time.Time `json:"deleted,omitempty"`
	// Damaged names the objects that are damaged or missing, as far as they were looked at; LogStatus is empty then.
	Damaged string `json:"damaged,omitempty"`
	LogStatus
}

// LeaseStatus describes the manager that ships to a destination.
type LeaseStatus struct {
	Term     uint64 `json:"term"`
	Host     string `json:"host"`
	Released bool   `json:"released"`
}

// ReadStatus reads the status of the log with this prefix; empty means LedgerLog. The error is ErrNothing when
// the destination has nothing of it. Damage of named logs is an error besides the status of the rest.
func ReadStatus(ctx context.Context, s object.Store, log string) (*Status, error) {
	if log == "" {
		log = LedgerLog
	}
	s = &retrying{Store: s, tries: tries, timeout: tryTimeout}
	st := &Status{Log: log}
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
	var m *manifest
	if st.LogStatus, m, err = readLogStatus(ctx, s, log); err != nil {
		return nil, err
	}
	if log != LedgerLog {
		return st, nil
	}
	var bad []error
	c, err := catalogOf(ctx, s, m)
	if err = onlyDamage(err, &bad); err != nil {
		return nil, err
	}
	if c == nil {
		return st, errors.Join(bad...)
	}
	for _, e := range c.Logs {
		if !e.Shipped || e.Gone {
			continue
		}
		n := NamedStatus{Name: e.Name, Prefix: e.Prefix, Made: time.UnixMilli(e.Made)}
		if e.Deleted != 0 {
			at := time.UnixMilli(e.Deleted)
			n.Deleted = &at
		}
		n.LogStatus, _, err = readLogStatus(ctx, s, e.Prefix)
		var damage *DamageError
		if errors.As(err, &damage) || errors.Is(err, ErrNothing) {
			n.LogStatus, n.Damaged = LogStatus{}, strings.ReplaceAll(err.Error(), "\n", "; ")
			bad = append(bad, fmt.Errorf("log %q: %w", e.Name, err))
		} else if err != nil {
			return nil, fmt.Errorf("log %q: %w", e.Name, err)
		}
		st.Logs = append(st.Logs, n)
	}
	return st, errors.Join(bad...)
}

func readLogStatus(ctx context.Context, s object.Store, log string) (st LogStatus, m *manifest, err error) {
	m, damaged, tail, err := readShipped(ctx, s, log)
	if errors.Is(err, object.ErrNotFound) {
		return st, nil, noManifest(s, log)
	}
	if err != nil {
		return st, nil, err
	}
	for _, err := range damaged {
		return st, nil, err
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
	return st, m, nil
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
