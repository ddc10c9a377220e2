package ui

import (
	"context"
	"time"
)

// System describes a manager. What does not apply is nil.
type System struct {
	// Engine is the name of the engine. Durable and Shared are what it can do.
	Engine          string
	Durable, Shared bool
	Encrypted       bool
	Build           []Fact
	Log             *Log
	Fsync           *Histogram
	Shipping        *Shipping
	Shard           Shard
	// Origin is the name of this data centre, and Peers are the others.
	Origin   string
	Peers    []Peer
	Settings []Setting
}

// Fact is a name and a value.
type Fact struct{ Name, Value string }

// Log is the write-ahead log.
type Log struct {
	// Segments in use, and Prepared ones. LogBytes must be replayed at a start, QueueBytes wait for the disk.
	Segments, Prepared    int
	DiskBytes, LogBytes   int64
	QueueBytes, Undeleted int
	// Durable is the last record that is.
	Durable uint64
	// StateBytes is the size of the state on disk, and StateSequence the last record that it has.
	StateBytes    int64
	StateSequence uint64
	NoSpace       bool
}

// Histogram counts durations.
type Histogram struct {
	// Buckets are in order, from the shortest.
	Buckets []Bucket
	Count   uint64
	Mean    time.Duration
}

// Bucket counts durations up to UpTo that are in no earlier bucket. The last one has no UpTo.
type Bucket struct {
	UpTo  time.Duration
	Count uint64
}

// Shipping is how far the log has been shipped to an object storage.
type Shipping struct {
	Place   string
	Term    uint64
	Failing time.Duration
	// Records are not shipped, the oldest for Age.
	Records uint64
	Age     time.Duration
}

// Shard is what the ledger is among others.
type Shard struct {
	ID, Name string
	Shards   []string
	Version  uint64
}

// Peer is another data centre, and how far this one is behind it.
type Peer struct {
	Name, URL string
	// Lag is for how long not everything of the peer has been here, and Missing how many of its outcomes are known to lack.
	Lag     time.Duration
	Missing uint64
	// Error is why the last call failed, "" after one that did not.
	Error string
}

// Setting is a setting of the manager. Hidden ones have no Value.
type Setting struct {
	Name, Value, From string
	Hidden            bool
}

type systemData struct {
	System
	Started time.Time
	// Tokens are the words of each token; nil where none is asked for.
	Tokens [][]string
	// Certificates: callers of the API need a client certificate.
	Certificates bool
}

func (u *UI) system(ctx context.Context) (*systemData, error) {
	d := &systemData{Started: u.started, Tokens: u.opts.Auth.TokenWords(), Certificates: u.opts.Auth.CertificatesAsked()}
	if u.opts.System != nil {
		d.System = u.opts.System(ctx)
	}
	return d, nil
}

// column is a bar of a histogram. Width is in hundredths of the longest one's.
type column struct {
	Label string
	Count uint64
	Width int
}

// Bars are the buckets as a chart, without the empty ones at both ends.
func (h *Histogram) Bars() []column {
	first, last, most := -1, -1, uint64(1)
	for i, b := range h.Buckets {
		if b.Count > 0 {
			if first < 0 {
				first = i
			}
			last, most = i, max(most, b.Count)
		}
	}
	if first < 0 {
		return nil
	}
	var bars []column
	for _, b := range h.Buckets[first : last+1] {
		c := column{Label: "longer", Count: b.Count, Width: int(100 * float64(b.Count) / float64(most))}
		if b.Count > 0 {
			c.Width = max(c.Width, 1)
		}
		if b.UpTo > 0 {
			c.Label = "≤ " + shortDuration(b.UpTo)
		}
		bars = append(bars, c)
	}
	return bars
}

// shortDuration is lasts with less to read, for the axis of a chart.
func shortDuration(d time.Duration) string { return d.Round(d / 100).String() }
