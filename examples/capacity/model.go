package main

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// What one new key takes, as --measure showed it on a machine with 2 cores (Intel Xeon), Envoy 1.40.0 and a manager on the
// engine wal. A new key is two calls on the manager: reserve and commit. Each is a message of its own. The manager makes the
// calls of a stream that have arrived in one transaction (a group), and one sync of the log serves the groups of all streams.
const (
	// proxyKeyMicros is Envoy's CPU time for the request itself, the filter, both messages, and the upstream.
	proxyKeyMicros = 165
	// proxyContinueMicros is the inner listener, through which the gate calls the upstream itself.
	proxyContinueMicros = 80
	// proxyReplayMicros is Envoy's CPU time for a retry that its cache answers.
	proxyReplayMicros = 62
	// managerKeyMicros, managerGroupMicros and managerSyncMicros are the manager's CPU time for two calls, for a group, and for
	// a sync. They fit runs with 1 to 8 workers and 1 to 128 callers within an eighth.
	managerKeyMicros   = 23
	managerGroupMicros = 108
	managerSyncMicros  = 184
	// groupsAtWork is how many groups of a stream the manager makes side by side. Later calls gather meanwhile.
	groupsAtWork = 4

	// Bytes beside the answer: of the log's records, of what the window counts, of the state on disk, and of the messages
	// with their replies. Log and network are those of calls that are made singly; groups save a tenth.
	logKeyBytes     = 637
	windowKeyBytes  = 494
	stateKeyBytes   = 330
	networkKeyBytes = 784
	// feedKeyBytes is one change in the feed to another region, whose answer is in base64.
	feedKeyBytes    = 400
	feedAnswerBytes = 4.0 / 3

	// baseMemory is the memory of a process without records, with its requests. residentPerCache is the memory for each byte of
	// --cache-bytes, since Go's heap may double before it is collected. recordMemory is that of a record's fingerprint.
	baseMemory       = 0.2e9
	residentPerCache = 1.5
	recordMemory     = 2
	// maxEntries is the largest --max-entries.
	maxEntries = 1_000_000_000
	// jobBytes is about what a small job counts for.
	jobBytes = 600
	// stateSpace is the disk for each byte of the state, since compaction keeps old files until the new ones are complete.
	stateSpace = 1.3
	// flushBytes is how much log there may be that the state does not have. A flush may take as long as it takes to write as
	// much log again.
	flushBytes = 256 << 20
	// writesPerLogByte is how many bytes a disk writes for each byte of log: the log itself, the state, and its compaction.
	// A state of less than smallState is seldom compacted, which saves all but smallWrites.
	writesPerLogByte = 5
	smallWrites      = 2
	smallState       = 100e6
	// startSeconds is what a start takes to replay the log, and startSecondsPerEntry what it takes to read a fingerprint.
	startSeconds         = 1
	startSecondsPerEntry = 5e-8
	// shardRate is the rate of new keys that a manager was seen to serve to 64 callers, each call by itself, on two cores that
	// the callers shared (docs/benchmarks.md). More cores serve more; how many more was not measured.
	shardRate = 15000
	// managerConnections is how many connections a manager takes.
	managerConnections = 16384
	// segmentBytes is the size of a segment of the log.
	segmentBytes = 64 << 20

	// usable is the part of a resource that the plan uses. The rest is for bursts and for the shards that take longer.
	usable = 0.6
)

// grouping is how a manager makes calls.
type grouping struct {
	calls  float64 // in a group
	groups float64 // in a sync
}

// callersGrouping is that of a measured run, whose callers have one stream.
var callersGrouping = grouping{calls: 8, groups: 1.2}

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
	// ShardCores, ShardMemory and ShardDisk (bytes) are what one manager has.
	ShardCores, ShardMemory, ShardDisk float64
	// CacheBytes is a manager's memory for records (--cache-bytes).
	CacheBytes float64
	// JobBytes is what the jobs of one manager take at most (--job-max-bytes).
	JobBytes float64
	// Fsync is the time of an fdatasync on a manager's disk.
	Fsync time.Duration
}

// DefaultSite is what the program takes without flags.
var DefaultSite = Site{Regions: 1, ShardCores: 4, ShardMemory: 4e9, ShardDisk: 1e12, CacheBytes: 256 << 20, Fsync: 500 * time.Microsecond}

func (s Site) check() error {
	return errors.Join(
		between("regions", float64(s.Regions), 1, 100),
		between("workers", float64(s.Workers), 0, 1e6),
		between("shard-cores", s.ShardCores, 0.1, 1024),
		between("shard-memory", s.ShardMemory, 2e9, 1e13),
		between("shard-disk", s.ShardDisk, 1e10, 1e15),
		between("cache-bytes", s.CacheBytes, 1<<20, max(256<<20, (s.ShardMemory*usable-baseMemory)/residentPerCache/2)),
		between("job-bytes", s.JobBytes, 0, s.ShardDisk*usable/stateSpace/2),
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

// cost is what one new key takes, with its retries: microseconds of CPU time, bytes that the manager writes to its log, bytes
// that the window counts for the entry, bytes of state, and bytes between proxy and manager, both ways.
type cost struct {
	proxyMicros, managerMicros                      float64
	logBytes, windowBytes, stateBytes, networkBytes float64
}

// predict returns what a new key takes when the manager makes calls like this.
func predict(l Load, g grouping) cost {
	answer := float64(l.AnswerBytes)
	groups := 2 / g.calls
	p := cost{
		proxyMicros:   proxyKeyMicros + l.Retries*proxyReplayMicros,
		managerMicros: managerKeyMicros + groups*managerGroupMicros + groups/g.groups*managerSyncMicros,
		logBytes:      logKeyBytes + answer,
		windowBytes:   windowKeyBytes + answer,
		stateBytes:    stateKeyBytes + answer,
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
	// Grouping is how each manager makes calls.
	Grouping grouping
	// ProxyCores and Workers are Envoy's: the CPU time, and workers at the usable part of a core each.
	ProxyCores float64
	Workers    int
	// Shards, and how many of them each resource alone would need.
	Shards, ShardsForDisk, ShardsForMemory, ShardsForCPU, ShardsForRate int
	// Connections are those of the region's workers to each shard.
	Connections int
	// Per shard: the window (--max-bytes), the memory of the process, the directory, and the seconds of a start.
	WindowBytes, MemoryBytes, DiskBytes, StartSeconds float64
	// Per region and second: bytes written to disks, between Envoys and managers, and to other regions.
	DiskWrites, Network, Feed float64
}

// Calculate makes the plan of one region. Shards depend on the size of groups, which depends on the shards, so it
// calculates a few times; each time needs as many shards as before, or more.
func Calculate(l Load, s Site) Plan {
	p := Plan{Load: l, Site: s, Rate: l.Rate / float64(s.Regions), Shards: 1}
	kept := p.Rate
	if s.Feed {
		kept = l.Rate
	}
	p.Entries = kept * l.TTL.Seconds()
	one := predict(l, grouping{1, 1})
	p.ProxyCores = p.Rate * one.proxyMicros / 1e6
	p.Workers = s.Workers
	if p.Workers == 0 {
		p.Workers = max(1, int(math.Ceil(p.ProxyCores/usable)))
	}
	disk := s.ShardDisk*usable - logDisk - s.JobBytes*stateSpace
	p.ShardsForDisk = max(1, int(math.Ceil(p.Entries*one.stateBytes*stateSpace/disk)))
	records := (s.ShardMemory*usable-s.fixedMemory())/recordMemory - s.jobs()
	p.ShardsForMemory = max(1, int(math.Ceil(p.Entries/min(records, maxEntries))))
	p.ShardsForRate = max(1, int(math.Ceil(kept/usable/shardRate)))
	for range 50 {
		p.Grouping = p.grouping(p.Shards)
		one = predict(l, p.Grouping)
		cores := p.Rate * one.managerMicros / 1e6
		if s.Feed {
			cores += (l.Rate - p.Rate) * managerKeyMicros / 1e6
		}
		p.ShardsForCPU = max(1, int(math.Ceil(cores/usable/s.ShardCores)))
		shards := max(p.Shards, p.ShardsForCPU, p.ShardsForDisk, p.ShardsForMemory, p.ShardsForRate)
		if shards == p.Shards {
			break
		}
		p.Shards = shards
	}
	p.Connections = p.Workers
	if l.AnswerBytes > api.MaxSmallReply {
		p.Connections *= 2 // another one for large answers
	}
	shards := float64(p.Shards)
	p.WindowBytes = p.Entries * one.windowBytes / shards
	p.MemoryBytes = s.fixedMemory() + (p.Entries/shards+s.jobs())*recordMemory
	state := p.Entries*one.stateBytes/shards + s.JobBytes
	p.DiskBytes = state*stateSpace + logDisk
	p.DiskWrites = kept * one.logBytes * smallWrites
	if state > smallState {
		p.DiskWrites = kept * one.logBytes * writesPerLogByte
	}
	p.StartSeconds = startSeconds + p.Entries/shards*startSecondsPerEntry
	p.Network = p.Rate * one.networkBytes
	if s.Feed {
		p.Feed = p.Rate * float64(s.Regions-1) * (feedKeyBytes + feedAnswerBytes*float64(l.AnswerBytes))
	}
	return p
}

// logDisk is the most disk that a log takes: what the state does not have, as much again during a flush, and three segments.
const logDisk = 2*flushBytes + 3*segmentBytes

// fixedMemory is the memory of a manager beside that of fingerprints.
func (s Site) fixedMemory() float64 { return baseMemory + residentPerCache*s.CacheBytes }

// jobs is how many records the jobs of a manager are at most.
func (s Site) jobs() float64 { return s.JobBytes / jobBytes }

// grouping returns how each of the shards makes calls. A group takes between one sync and two, since a sync may be under way
// when it begins. A sync begins as soon as the one before has ended and a group is there.
func (p Plan) grouping(shards int) grouping {
	fsync := p.Site.Fsync.Seconds()
	calls := 2 * p.Rate / float64(shards) // per second
	g := grouping{calls: max(1, calls/float64(p.Workers)*1.5*fsync/groupsAtWork)}
	groups := calls / g.calls
	g.groups = groups*fsync + math.Exp(-groups*fsync)
	return g
}

// limits returns what the plan cannot have, the nearest first.
func (p Plan) limits() []string {
	var found []string
	if p.Shards > api.MaxShards {
		found = append(found, fmt.Sprintf("%d shards are more than one list of a gate can name (%d): shorten the TTL, give managers larger disks, or divide the routes between lists",
			p.Shards, api.MaxShards))
	}
	if p.Connections > managerConnections {
		found = append(found, fmt.Sprintf("%d connections to each manager are more than it takes (%d): give proxies fewer workers, or divide the routes between lists",
			p.Connections, managerConnections))
	}
	if p.StartSeconds > 60 {
		found = append(found, fmt.Sprintf("a start of a manager takes %.0f s, and its keys get 503 in this time: take more and smaller shards", p.StartSeconds))
	}
	if max(p.ShardsForDisk, p.ShardsForMemory) > max(p.ShardsForCPU, p.ShardsForRate) {
		found = append(found, "the number of entries asks for more shards than the rate does: a shorter TTL saves most")
	}
	return found
}
