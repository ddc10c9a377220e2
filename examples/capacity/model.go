package main

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// What one new key takes, as measured on a machine with 2 cores (Intel Xeon), Envoy 1.40.0 with one worker and a manager
// on the engine wal. A new key is two calls on the manager: reserve
// and commit. Calls that are ready together for one shard share a callout, and what a callout costs by itself is divided
// by their number.
const (
	// proxyKeyMicros is Envoy's CPU time without callouts: the request itself, the filter, the upstream.
	proxyKeyMicros = 118
	// proxyCalloutMicros is Envoy's CPU time for one callout.
	proxyCalloutMicros = 45
	// proxyContinueMicros is the inner listener, through which the gate calls the upstream itself.
	proxyContinueMicros = 57
	// proxyReplayMicros is Envoy's CPU time for a retry that its cache answers.
	proxyReplayMicros = 49
	// managerKeyMicros and managerCalloutMicros are the manager's CPU time for two calls, and for one callout.
	managerKeyMicros     = 20
	managerCalloutMicros = 13

	// Bytes beside the answer: of the log's records, of what the window counts, of a snapshot's record, and of the
	// callouts with their answers.
	logKeyBytes      = 517
	windowKeyBytes   = 457
	snapshotKeyBytes = 239
	networkKeyBytes  = 596
	// feedKeyBytes is one change in the feed to another region, whose answer is in base64.
	feedKeyBytes    = 400
	feedAnswerBytes = 4.0 / 3

	// residentPerWindow is the memory of the process for each byte of the window and of jobs: Go's heap may double before it is
	// collected, and snapshots and requests need room.
	residentPerWindow = 3
	// startSecondsPerEntry is what a start takes to read an entry.
	startSecondsPerEntry = 5e-6
	// shardRate is the highest rate of new keys that a manager was seen to serve, in batches of 16 on two cores that the
	// callers shared. More cores serve more; how many more was not measured.
	shardRate = 15000
	// segmentBytes is the size of a segment of the log.
	segmentBytes = 64 << 20

	// usable is the part of a resource that the plan uses. The rest is for bursts, for snapshots and for the shards
	// that take longer.
	usable = 0.6
	// callersBatch is how many calls of a measured run's callers are found in one callout.
	callersBatch = 6
)

// Load is what clients ask for.
type Load struct {
	// Rate is new keys per second, in all regions together.
	Rate float64
	// Retries is how many retries a new key has on average.
	Retries float64
	// TTL is how long an answer is remembered.
	TTL time.Duration
	// AnswerBytes is the size of an answer with its headers.
	AnswerBytes int
	// ClientAbort is the routes' client_abort.
	ClientAbort string
}

// DefaultLoad is what the program takes without flags.
var DefaultLoad = Load{Rate: 1000, Retries: 0.05, TTL: 24 * time.Hour, AnswerBytes: 1024, ClientAbort: "continue"}

func (l Load) check() error {
	return errors.Join(
		between("rate", l.Rate, 0.001, 1e8),
		between("retries", l.Retries, 0, 1000),
		between("ttl in seconds", l.TTL.Seconds(), 1, 366*24*3600),
		between("answer-bytes", float64(l.AnswerBytes), 0, 16<<20),
		oneOf("client-abort", l.ClientAbort, "continue", "cancel"),
	)
}

// Site is what serves it.
type Site struct {
	// Regions share the rate evenly. Each has its own ledger.
	Regions int
	// Feed: every region keeps the answers of the others as well.
	Feed bool
	// Workers is the number of Envoy workers in a region; 0: as many as the CPU time needs.
	Workers int
	// ShardCores and ShardMemory (bytes) are what one manager has.
	ShardCores, ShardMemory float64
	// JobBytes is what the jobs of one manager take at most (--job-max-bytes).
	JobBytes float64
	// RoundTrip is the network time to a manager, Fsync that of an fdatasync on its disk.
	RoundTrip, Fsync time.Duration
}

// DefaultSite is what the program takes without flags.
var DefaultSite = Site{Regions: 1, ShardCores: 4, ShardMemory: 64e9, RoundTrip: 500 * time.Microsecond, Fsync: 500 * time.Microsecond}

func (s Site) check() error {
	return errors.Join(
		between("regions", float64(s.Regions), 1, 100),
		between("workers", float64(s.Workers), 0, 1e6),
		between("shard-cores", s.ShardCores, 0.1, 1024),
		between("shard-memory", s.ShardMemory, 1e8, 1e13),
		between("job-bytes", s.JobBytes, 0, s.ShardMemory/residentPerWindow/2),
		between("round-trip in seconds", s.RoundTrip.Seconds(), 0, 10),
		between("fsync in seconds", s.Fsync.Seconds(), 0, 10),
	)
}

func between(name string, v, low, high float64) error {
	if v >= low && v <= high {
		return nil
	}
	return fmt.Errorf("--%s=%v: must be %v to %v", name, v, low, high)
}

func oneOf(name, v string, allowed ...string) error {
	for _, a := range allowed {
		if v == a {
			return nil
		}
	}
	return fmt.Errorf("--%s=%q: must be one of %q", name, v, allowed)
}

// perKey is what one new key takes, with its retries.
type perKey struct {
	proxyMicros, managerMicros                         float64
	logBytes, windowBytes, snapshotBytes, networkBytes float64
}

// predict returns what a new key takes when batch calls share a callout.
func predict(l Load, batch float64) perKey {
	answer := float64(l.AnswerBytes)
	callouts := 2 / batch
	p := perKey{
		proxyMicros:   proxyKeyMicros + callouts*proxyCalloutMicros + l.Retries*proxyReplayMicros,
		managerMicros: managerKeyMicros + callouts*managerCalloutMicros,
		logBytes:      logKeyBytes + answer,
		windowBytes:   windowKeyBytes + answer,
		snapshotBytes: snapshotKeyBytes + answer,
		networkBytes:  networkKeyBytes + answer,
	}
	if l.ClientAbort == "continue" {
		p.proxyMicros += proxyContinueMicros
	}
	return p
}

// Plan is what a load takes in one region, which has its part of the rate.
type Plan struct {
	Load Load
	Site Site

	// Rate is the region's new keys per second; Entries is what its ledger holds in the steady state.
	Rate, Entries float64
	// Batch is how many calls share a callout.
	Batch float64
	// ProxyCores and Workers are Envoy's: the CPU time, and workers at the usable part of a core each.
	ProxyCores float64
	Workers    int
	// Shards, and how many of them each resource alone would need.
	Shards, ShardsForMemory, ShardsForCPU, ShardsForRate int
	// Per shard: the window (--max-bytes), the memory of the process, the directory, and the seconds of a start.
	WindowBytes, MemoryBytes, DiskBytes, StartSeconds float64
	// Per region and second: bytes written to disks, between Envoys and managers, and to other regions.
	DiskWrites, Network, Feed float64
}

// Calculate makes the plan of one region. Shards depend on the size of a callout, which depends on the shards, so it
// calculates a few times; each time needs as many shards as before, or more.
func Calculate(l Load, s Site) Plan {
	p := Plan{Load: l, Site: s, Rate: l.Rate / float64(s.Regions)}
	kept := p.Rate
	if s.Feed {
		kept = l.Rate
	}
	p.Entries = kept * l.TTL.Seconds()
	p.Shards, p.Batch = 1, 1
	for range 50 {
		one := predict(l, p.Batch)
		p.ProxyCores = p.Rate * one.proxyMicros / 1e6
		p.Workers = s.Workers
		if p.Workers == 0 {
			p.Workers = max(1, int(math.Ceil(p.ProxyCores/usable)))
		}
		cores := p.Rate * one.managerMicros / 1e6
		if s.Feed {
			cores += (l.Rate - p.Rate) * managerKeyMicros / 1e6
		}
		p.ShardsForCPU = max(1, int(math.Ceil(cores/usable/s.ShardCores)))
		p.ShardsForMemory = max(1, int(math.Ceil(p.Entries*one.windowBytes*residentPerWindow/(s.ShardMemory-s.JobBytes*residentPerWindow))))
		p.ShardsForRate = max(1, int(math.Ceil(kept/usable/shardRate)))
		shards := max(p.Shards, p.ShardsForCPU, p.ShardsForMemory, p.ShardsForRate)
		batch := p.callsInFlight(shards)
		if shards == p.Shards && batch == p.Batch {
			break
		}
		p.Shards, p.Batch = shards, batch
	}
	one := predict(l, p.Batch)
	shards := float64(p.Shards)
	p.WindowBytes = p.Entries * one.windowBytes / shards
	p.MemoryBytes = (p.WindowBytes + s.JobBytes) * residentPerWindow
	snapshot := p.Entries*one.snapshotBytes/shards + s.JobBytes
	// Two snapshots, the log since the last one, which may grow as large, and three segments.
	p.DiskBytes = 3*max(snapshot, segmentBytes) + 3*segmentBytes
	// Each byte of log is written again once as part of a snapshot.
	p.DiskWrites = 2 * kept * one.logBytes
	p.StartSeconds = p.Entries / shards * startSecondsPerEntry
	p.Network = p.Rate * one.networkBytes
	if s.Feed {
		p.Feed = p.Rate * float64(s.Regions-1) * (feedKeyBytes + feedAnswerBytes*float64(l.AnswerBytes))
	}
	return p
}

// callsInFlight is how many calls a worker collects for one shard: those that become ready while the callout before
// them is under way.
func (p Plan) callsInFlight(shards int) float64 {
	callout := (p.Site.RoundTrip + p.Site.Fsync).Seconds()
	ready := 2 * p.Rate / float64(p.Workers) / float64(shards) * callout
	return min(max(ready, 1), api.MaxTogether)
}

// limits returns what the plan cannot have, the nearest first.
func (p Plan) limits() []string {
	var found []string
	if p.Shards > api.MaxShards {
		found = append(found, fmt.Sprintf("%d shards are more than one list of a gate can name (%d): shorten the TTL, give managers more memory, or divide the routes between lists",
			p.Shards, api.MaxShards))
	}
	if p.StartSeconds > 60 {
		found = append(found, fmt.Sprintf("a start of a manager takes %.0f s, and its keys get 503 in this time: take more and smaller shards", p.StartSeconds))
	}
	if p.ShardsForMemory > max(p.ShardsForCPU, p.ShardsForRate) {
		found = append(found, "memory asks for more shards than the rate does: a shorter TTL saves most")
	}
	return found
}
