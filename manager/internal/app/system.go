package app

import (
	"context"
	"math"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/oncegate/oncegate/manager/internal/ui"
)

// system describes the manager for its web page.
func (a *app) system(context.Context) ui.System {
	c, i := a.store.Capabilities(), a.shard.Identity()
	s := ui.System{
		Engine: c.Name, Durable: c.Durable, Shared: c.Shared, Encrypted: a.ring != nil,
		Shard: ui.Shard{ID: i.ID, Name: i.Name, Shards: i.Shards, Version: i.Version},
		Build: []ui.Fact{{Name: "Version", Value: a.version}, {Name: "Go", Value: runtime.Version()}, {Name: "Platform", Value: runtime.GOOS + "/" + runtime.GOARCH}},
	}
	if b, ok := debug.ReadBuildInfo(); ok {
		s.Build = append(s.Build, ui.Fact{Name: "Module", Value: b.Main.Path + " " + b.Main.Version})
	}
	if a.wal != nil {
		st := a.wal.Log().Stats()
		s.Log = &ui.Log{
			Segments: st.Segments, Prepared: st.Prepared, DiskBytes: st.DiskBytes, LogBytes: st.LogBytes, QueueBytes: st.QueueBytes,
			Durable: st.Durable, StateBytes: a.wal.StateBytes(), StateSequence: a.wal.StateSequence(),
			NoSpace: st.NoSpace, Undeleted: st.Undeleted,
		}
		s.Fsync = a.wal.metrics.fsyncs()
	}
	if a.shipper != nil {
		st := a.shipper.State()
		s.Shipping = &ui.Shipping{Place: st.Place, Term: st.Term, Failing: st.Failing, Records: st.Records, Age: st.Age}
	}
	s.Origin = a.origin()
	if a.puller != nil {
		for _, p := range a.puller.Status() {
			s.Peers = append(s.Peers, ui.Peer{
				Name: p.Name, URL: p.URL, Lag: time.Duration(p.LagSeconds * float64(time.Second)), Missing: p.LagEntries, Error: p.Error,
			})
		}
	}
	for _, v := range a.settings.Values() {
		s.Settings = append(s.Settings, ui.Setting(v))
	}
	return s
}

// origin is the name of this data centre, "" without others.
func (a *app) origin() string {
	if a.peers == nil {
		return ""
	}
	return a.peers.Origin()
}

// fsyncs reads the histogram of the log's writes.
func (m *logMetrics) fsyncs() *ui.Histogram {
	var read dto.Metric
	if m.fsync.Write(&read) != nil {
		return nil
	}
	h := read.GetHistogram()
	out := &ui.Histogram{Count: h.GetSampleCount()}
	if out.Count > 0 {
		out.Mean = time.Duration(h.GetSampleSum() / float64(out.Count) * float64(time.Second))
	}
	before := uint64(0)
	for _, b := range h.GetBucket() {
		if math.IsInf(b.GetUpperBound(), 0) {
			break
		}
		out.Buckets = append(out.Buckets, ui.Bucket{UpTo: time.Duration(b.GetUpperBound() * float64(time.Second)), Count: b.GetCumulativeCount() - before})
		before = b.GetCumulativeCount()
	}
	out.Buckets = append(out.Buckets, ui.Bucket{Count: out.Count - before})
	return out
}

// hosts are the names by which browsers may ask for the page.
func (a *app) hosts() []string {
	own, _ := os.Hostname() // "" without one
	name, _, _ := net.SplitHostPort(a.settings.Admin)
	return []string{own, name}
}
