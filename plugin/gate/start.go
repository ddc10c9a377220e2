package gate

import (
	"encoding/hex"
	"errors"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/request"
)

// New returns a gate that is not started.
func New(host Host) *Plugin { return &Plugin{host: host} }

// Start reads the configuration and prepares the VM. An error names the field that is wrong and says why; the plugin must
// then not be used.
//
// Hosts also call it on VMs that never get a stream, so it does only what is harmless there: it writes a scratch key and a
// beat, registers a queue, and defines metrics.
func (p *Plugin) Start(configuration []byte) error {
	cfg, err := config.Parse(configuration)
	if err != nil {
		return err
	}
	token, err := cfg.Manager.Token(p.host.Env)
	if err != nil {
		return err
	}
	secret, err := cfg.Secret(p.host.Env)
	if err != nil {
		return err
	}
	p.config = cfg
	p.metrics.define(p.host)
	var name [16]byte
	if !p.host.Random(name[:]) {
		return errors.New("the host has no randomness to offer")
	}
	queue, ok := p.host.RegisterQueue("oncegate." + hex.EncodeToString(name[:]))
	if !ok {
		return errors.New("the host refused to register a shared queue")
	}
	p.queue = queue
	semantics := cache.Probe(p.host, cachePrefix)
	if !semantics.Usable {
		p.host.Log(LevelWarn, "oncegate: shared data is not usable here; every request asks the ledger")
	}
	p.table = cache.New(p.host, semantics, cache.Options{
		Prefix:     cachePrefix,
		MaxEntries: cfg.MaxEntries,
		MaxBytes:   cfg.MaxBytes,
		// A body comes with a status and headers.
		MaxResultBytes: cfg.LargestAnswer() + api.MaxResultHeaderBytes,
	})
	p.lastBeat = p.host.Now()
	p.table.Beat(p.queue, p.lastBeat)
	p.logShared()
	p.digester = request.NewDigester(secret)
	p.calls.init(p, token)
	p.carrier.p = p
	p.sweepSize = sweepSets
	if cfg.CleanupInterval > 0 {
		perTick := int64(p.table.Buckets()) * int64(tickPeriod) / int64(cfg.CleanupInterval)
		p.sweepSize = int(min(perTick+1, sweepSets))
	}
	if !p.host.SetTick(tickPeriod) {
		return errors.New("the host refused to set the tick period")
	}
	// Messages that are in the queue already raise no callback.
	p.readQueue()
	return nil
}

// cachePrefix is the prefix of all keys that gates use in shared data. An older and a newer gate share them; the version in
// each record identifies its format.
const cachePrefix = "oncegate"

// logShared names the routes where callers may share their keys.
func (p *Plugin) logShared() {
	if names := p.config.Shared(); len(names) > 0 {
		p.host.Log(LevelInfo, `oncegate: requests that lack what the scope names share their keys ("anonymous": "shared") in `+strings.Join(names, ", "))
	}
}

// Shutdown prepares for the plugin's removal. True: the host may remove it now. False: requests still run and need
// renewals, or outcomes are on their way to the ledger or the cache. The plugin calls Host.Done once all of them have
// arrived or run out.
func (p *Plugin) Shutdown() bool {
	if p.idle() {
		p.calls.close()
		p.calls.connect() // closes them
		return true
	}
	p.shuttingDown = true
	return false
}

func (p *Plugin) idle() bool {
	return p.calls.idle() && p.carrier.idle() && len(p.changes) == 0 && len(p.renewing) == 0
}

// beat records for the other VMs that this one is alive.
func (p *Plugin) beat(now int64) {
	since := now - p.lastBeat
	if since >= 0 && since < cache.BeatPeriod {
		return
	}
	if since >= beatGap {
		p.steadySince = now
	}
	p.lastBeat = now
	p.table.Beat(p.queue, now)
}

// beatGap is the time after which a late beat means that the VM stood still.
const beatGap = 3 * cache.BeatPeriod

// isDead reports whether the VM of another queue has died. After this VM stood still it judges no other VM until that one
// had time to beat, because the whole proxy may have stood still.
func (p *Plugin) isDead(queue uint32, now int64) bool {
	return queue != p.queue && now-p.lastBeat < beatGap && now-p.steadySince >= 2*cache.BeatPeriod && !p.table.Alive(queue, now)
}

// reportStats adds to the metrics what the table has counted since the last report.
func (p *Plugin) reportStats() {
	stats := p.table.Stats()
	m := &p.metrics
	m.add(m.evicted, int64(stats.Evictions-p.reportedStats.Evictions))
	m.add(m.full, int64(stats.Refused-p.reportedStats.Refused))
	m.add(m.answersDropped, int64(stats.AnswersDropped-p.reportedStats.AnswersDropped))
	m.add(m.casRetry, int64(stats.Retries-p.reportedStats.Retries))
	if stats.Entries != p.reportedStats.Entries {
		m.record(m.entries, stats.Entries)
	}
	if stats.Bytes != p.reportedStats.Bytes {
		m.record(m.bytes, stats.Bytes)
	}
	p.reportedStats = stats
}
