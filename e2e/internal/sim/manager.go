package sim

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/managertest/simulated"
)

// manager is a machine with a disk on which a manager runs, most of the time.
type manager struct {
	w    *World
	name string
	// origin is its data centre, of which twin is a second manager, and doubled had one. gone: it never starts again.
	origin              string
	twin, doubled, gone bool
	disk                *simulated.Disk
	run                 *process // nil: none
	life                int      // processes so far
	list                []string // the list of shards for the next process; nil: none

	// disks counts the disks that were lost, and unmarked the calls on their way whose gates do not say which ledger they
	// know.
	disks    int
	unmarked int
	loss     *loss // what it forgot last, in worlds with several data centres

	frozen   bool          // the process is stopped
	still    atomic.Int64  // while it is stopped: the time on its clock, in Unix nanoseconds
	served   time.Duration // until when it served
	servedAt int64         // the same by its clock, in Unix milliseconds
	inbox    []arrival     // what arrived while it was stopped or starting
	conns    []*conn       // those that have arrived at the process
	shift    atomic.Int64
	// By how much the clock has been set forward and back in total.
	ahead, setBack time.Duration
}

// process is one run of the manager's program.
type process struct {
	m       *manager
	life    int
	ready   bool
	dead    bool
	list    []string // of shards
	manager *simulated.Manager
	disk    *slowDisk
	pages   map[string][]byte // the last page of changes that it got, by the manager that it is from
}

func newManager(w *World, name string, list []string) *manager {
	m := &manager{w: w, name: name, origin: name, list: list, disk: new(simulated.Disk)}
	if w.plan.Has(Centres) {
		m.shift.Store(int64(w.between(-12*time.Hour, 12*time.Hour)))
	}
	m.start()
	return m
}

// slowDisk makes syncs take time, so that a crash can come between a write and its sync.
type slowDisk struct {
	seed uint64
	mu   sync.Mutex
	wait chan struct{} // not nil while the process is stopped
	off  bool
}

// hook waits. The time depends on the file and on the clock, and not on which goroutine comes
// first.
func (d *slowDisk) hook(op simulated.Op) error {
	// Syncs of the state take no time: Pebble holds mutexes meanwhile, for which virtual time would wait.
	if op.Kind != simulated.Sync || strings.Contains(op.Path, "/state/") {
		return nil
	}
	d.mu.Lock()
	wait, off := d.wait, d.off
	d.mu.Unlock()
	if off {
		return nil
	}
	h := fnv.New64a()
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], d.seed)
	binary.LittleEndian.PutUint64(b[8:], uint64(time.Now().UnixNano()))
	_, _ = h.Write(b[:])
	_, _ = io.WriteString(h, op.Path)
	time.Sleep(time.Duration(h.Sum64()%4_000_000) + 50*time.Microsecond)
	if wait != nil {
		<-wait
	}
	return nil
}

func (d *slowDisk) freeze() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.wait == nil && !d.off {
		d.wait = make(chan struct{})
	}
}

func (d *slowDisk) thaw(off bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.off = d.off || off
	if d.wait != nil {
		close(d.wait)
		d.wait = nil
	}
}

// start starts a process. It is ready some time later.
func (m *manager) start() {
	m.life++
	p := &process{m: m, life: m.life, list: m.list, disk: &slowDisk{seed: m.w.seed + uint64(m.life)}, pages: make(map[string][]byte)}
	m.run = p
	m.disk.SetHook(p.disk.hook)
	m.w.logf(m.name, "starts, life %d%s", m.life, p.describe())
	disk := m.disk
	m.w.aside(func() func() {
		err := p.open(disk)
		return func() { m.opened(p, err) }
	})
}

// open recovers the state and builds what serves it.
func (p *process) open(disk *simulated.Disk) (err error) {
	plan := &p.m.w.plan
	o := simulated.Options{
		Version: version, Clock: p.m.clock, Shards: p.list,
		MaxEntries: plan.MaxKeys, CommittedTTL: plan.CommittedTTL, LayerBytes: plan.LayerBytes,
	}
	if plan.Named {
		o.Name = p.m.name
	}
	o.Centre = p.centre()
	p.manager, err = simulated.Open(background, disk, o)
	return err
}

// describe returns a line for the timeline.
func (p *process) describe() (text string) {
	if p.list != nil {
		text += fmt.Sprintf(", shards %v", p.list)
	}
	return text
}

// version is what the managers report.
const version = "sim"

// clock is the time as the process sees it. It stands still while the process is stopped.
func (m *manager) clock() time.Time {
	if at := m.still.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Now().Add(time.Duration(m.shift.Load()))
}

// away notes that the manager does not serve from now on.
func (m *manager) away() { m.served, m.servedAt = m.w.now(), m.clock().UnixMilli() }

func (m *manager) opened(p *process, err error) {
	switch {
	case err != nil && !p.dead:
		m.w.fail("%s cannot start from what a crash left: %v", m.name, err)
	case err != nil:
	case p.dead:
		p.dispose()
	default:
		m.w.logf(m.name, "is ready")
		p.ready = true
		if p.life > 1 {
			m.w.history.downtime(m, false)
		}
		m.drain()
	}
}

// drain carries out what arrived while the process was stopped or starting.
func (m *manager) drain() {
	if m.frozen || m.run == nil || !m.run.ready {
		return
	}
	inbox := m.inbox
	m.inbox = nil
	// Connections are read in any order, and each in its own.
	order := make(map[*conn][]func())
	for _, a := range inbox {
		order[a.from] = append(order[a.from], a.do)
	}
	m.w.rnd.Shuffle(len(inbox), func(i, j int) { inbox[i], inbox[j] = inbox[j], inbox[i] })
	for i, a := range inbox {
		f := a.do
		if a.from != nil {
			f, order[a.from] = order[a.from][0], order[a.from][1:]
		}
		// One after the other: of calls that begin at one instant, any may be the first.
		m.w.after(time.Duration(i)*20*time.Microsecond, f)
	}
}

// The ways in which a crash treats data that was not synced.
var crashes = []struct {
	how  string
	disk func(*simulated.Disk, *rand.Rand) *simulated.Disk
}{
	{"the system lives on", func(f *simulated.Disk, _ *rand.Rand) *simulated.Disk { return f.Clone() }},
	{"unsynced data is lost", func(f *simulated.Disk, _ *rand.Rand) *simulated.Disk { return f.Crash() }},
	{"unsynced data is torn", func(f *simulated.Disk, r *rand.Rand) *simulated.Disk { return f.CrashRandomly(r) }},
	{"unsynced data ends early", func(f *simulated.Disk, r *rand.Rand) *simulated.Disk { return f.CrashTorn(r.Int64N(1500)) }},
}

// kill ends the process immediately.
func (m *manager) kill() {
	p := m.run
	if p == nil {
		return
	}
	c := crashes[m.w.rnd.IntN(len(crashes))]
	m.w.logf(m.name, "is killed; %s", c.how)
	crashed := c.disk(m.disk, rand.New(rand.NewPCG(m.w.seed, uint64(m.life))))
	if !m.frozen {
		m.away()
	}
	m.disk, m.run, m.frozen, m.inbox = crashed, nil, false, nil
	m.still.Store(0)
	p.dead = true
	m.w.history.crashed(m.w, m, p)
	p.disk.thaw(true)
	m.disconnect()
	if p.ready {
		p.dispose()
	}
}

// dispose ends the goroutines of a dead process. Nobody sees what they still do.
func (p *process) dispose() {
	p.m.w.asides.Go(func() { _ = p.manager.Close() })
}

// end ends the process and its goroutines when the world ends.
func (m *manager) end() {
	if why := m.forgot(); m.disks == 0 && !m.doubled && why != "" {
		m.w.fail("%s has lost nothing, and is in quarantine: %v", m.name, why)
	}
	if p := m.run; p != nil {
		m.run = nil
		p.dead = true
		p.disk.thaw(true)
		if p.ready {
			p.dispose()
		}
	}
}

// freeze stops the process as SIGSTOP does. thaw lets it continue.
func (m *manager) freeze() {
	if m.run == nil || m.frozen {
		return
	}
	m.w.logf(m.name, "is stopped")
	m.away()
	m.still.Store(m.clock().UnixNano())
	m.frozen = true
	m.run.disk.freeze()
}

func (m *manager) thaw() {
	if !m.frozen {
		return
	}
	m.w.logf(m.name, "continues")
	m.frozen = false
	m.still.Store(0)
	m.w.history.downtime(m, true)
	m.run.disk.thaw(false)
	m.drain()
}

// arrival is something that a manager will do; from is the connection that it came by, if any.
type arrival struct {
	from *conn
	do   func()
}

func (m *manager) later(from *conn, do func()) { m.inbox = append(m.inbox, arrival{from, do}) }

// request is a call that reaches a manager.
type request struct {
	from *conn // nil: it came by no connection of a gate
	path string
	mark string // what the caller remembers of the ledger
	body []byte
	// method and query are those of a call of another data centre; "": the call is a gate's.
	method, query string
	headers       []api.Header
	// answered runs in the loop, if at all; nil: the process has died meanwhile.
	answered func(*answer)
}

// answer is the answer to a call to a manager.
type answer struct {
	status  int
	headers [][2]string
	body    []byte
}

// handle has the manager carry out a call.
func (m *manager) handle(ctx context.Context, q *request) {
	p := m.run
	if p == nil {
		return
	}
	if !p.ready || m.frozen {
		m.later(q.from, func() { m.handle(ctx, q) })
		return
	}
	record := m.w.history.begin(m.w, m, p, q.path, q.body)
	headers := []api.Header{{Name: "content-type", Value: api.ContentTypeRaw}}
	m.w.aside(func() func() {
		var r simulated.Answer
		if q.method == "" {
			r = p.manager.Do(ctx, q.path, headers, q.body)
		} else {
			r = p.manager.Call(ctx, q.method, q.path, q.query, q.headers, q.body)
		}
		return func() { m.carriedOut(p, record, r, q) }
	})
}

func (m *manager) carriedOut(p *process, record *record, r simulated.Answer, q *request) {
	if p.dead {
		q.answered(nil)
		return
	}
	if m.frozen {
		m.later(nil, func() { m.carriedOut(p, record, r, q) })
		return
	}
	if m.w.adversary(Kill, 0.01) {
		m.w.logf(m.name, "has carried out a %s, and is killed before it says so", short(q.path))
		m.kill()
		m.w.after(m.w.outage(), m.revive)
		q.answered(nil)
		return
	}
	if q.mark != "" && r.Status < 300 && m.loss == nil && !m.noticed() {
		m.w.fail("%s lost its disk, and does as it is asked by a gate that remembers the earlier ledger", m.name)
	}
	m.w.history.end(m.w, record, r.Status, r.Body)
	a := &answer{status: r.Status, body: r.Body, headers: [][2]string{
		{":status", strconv.Itoa(r.Status)}, {api.HeaderManager, version}, {"content-type", r.ContentType},
	}}
	if r.RetryAfter > 0 {
		a.headers = append(a.headers, [2]string{"retry-after", strconv.Itoa(r.RetryAfter)})
	}
	for _, h := range r.Headers {
		a.headers = append(a.headers, [2]string{h.Name, h.Value})
	}
	q.answered(a)
}
