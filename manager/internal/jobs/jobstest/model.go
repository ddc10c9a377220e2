package jobstest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// model is the queue as plain maps. Its times are whole hours. The property test
// moves the clock by whole hours only. Real time that passes during the test makes
// nothing due that is not due by the model's hours as well.
type model struct {
	hour   int
	made   int   // jobs that there were
	tick   int64 // grows with each transaction
	jobs   map[string]*modelJob
	keys   map[string]string // key -> job
	locks  map[string]*modelLock
	paused map[string]bool
	modelLimits
	modelSets
	// moved are jobs to which the queue has given a run_at that the model does not know yet.
	moved []string
}

type modelJob struct {
	id, function, key string
	payload           string
	priority          int
	state             jobs.State
	attempt, max      int
	runAt             time.Time // as the queue reported it
	dueHour           int       // scheduled: run_at; active: end of the lease
	leased, claimedAt int64     // ticks of the present lease, which a heartbeat extends, and of the attempt
	seq               int       // its place among all jobs that there were
	token, lastToken  string
	cancelled         bool
	replayedAs        string
	duplicates        bool
	dedup             *jobs.Dedup
	lock              string
	wal               map[string]jobs.LSN
	err               string
	expires           int // the hour; 0 for never
	deadIfExpired     bool
	timeout, deadline int       // hours
	expiresAt         time.Time // as the queue reported it
	concurrencyKey    string
	place             int
	counts, countsKey bool // active: it counts for max_running and for max_running_per_key
	event             string
	batch, after      *modelBatch
}

// never is the hour of what waits for something else than the clock.
const never = 1 << 30

// over reports whether a job is terminal, or waits and has expired.
func (m *model) over(j *modelJob) bool {
	waits := j.state == jobs.Queued || j.state == jobs.Scheduled
	return j.state.Terminal() || waits && j.expires > 0 && j.expires <= m.hour
}

// keyHolder returns the job that holds a key, "" if none.
func (m *model) keyHolder(key string) string {
	if j := m.jobs[m.keys[key]]; key != "" && j != nil && !m.over(j) {
		return j.id
	}
	return ""
}

type modelLock struct {
	holder string
	until  int
}

func newModel() *model {
	return &model{
		jobs: map[string]*modelJob{}, keys: map[string]string{}, locks: map[string]*modelLock{},
		paused:      map[string]bool{},
		modelLimits: modelLimits{limits: map[string]jobs.Limits{}, empty: map[string]int{}, turns: map[[2]string]int64{}},
		modelSets:   modelSets{subscribed: map[string][]string{}, answers: map[string]modelAnswer{}},
	}
}

func (m *model) identity(s *jobs.Submission) string {
	switch {
	case s.Dedup.Key != "":
		return s.Function + " d " + s.Dedup.Key
	case s.Key != "":
		return s.Function + " k " + s.Key
	}
	var v any
	_ = json.Unmarshal(s.Payload, &v)
	return s.Function + " p " + fmt.Sprint(v)
}

// submit returns what a submission must do: the error, or the job that stands for
// it. Both empty: it makes a new job.
func (m *model) submit(s *jobs.Submission) (wantErr string, stands string, dropped bool) {
	if s.ID != "" && m.jobs[s.ID] != nil {
		return "conflict", "", false
	}
	if s.Dedup != nil {
		if holder := m.locker(m.identity(s)); holder != "" {
			kept := m.jobs[holder]
			kept.duplicates = true
			for _, w := range s.WALLocations {
				kept.wal[w.Database] = max(kept.wal[w.Database], w.LSN)
			}
			return "", holder, true
		}
	}
	if holder := m.keyHolder(s.Key); holder != "" {
		if s.ReturnExisting {
			return "", holder, false
		}
		return "duplicate " + holder, "", false
	}
	return "", "", false
}

// created records the new job that the queue makes of a submission. It waits for some hours.
func (m *model) created(s *jobs.Submission, hours int) *modelJob {
	mj := &modelJob{
		id: s.ID, function: s.Function, key: s.Key, payload: string(s.Payload), priority: s.Priority,
		max: s.MaxAttempts, dedup: s.Dedup, wal: map[string]jobs.LSN{},
		concurrencyKey: s.ConcurrencyKey, place: s.Place, event: s.Event,
	}
	if s.ExpiresIn > 0 {
		mj.expires, mj.deadIfExpired = m.hour+int(s.ExpiresIn/time.Hour), s.DeadIfExpired
	}
	mj.timeout = int(s.Timeout / time.Hour)
	for _, w := range s.WALLocations {
		mj.wal[w.Database] = w.LSN
	}
	m.add(mj)
	if s.Key != "" {
		m.keys[s.Key] = s.ID
	}
	if s.Dedup != nil {
		mj.lock = m.identity(s)
	}
	m.wait(mj, hours)
	return mj
}

func (m *model) add(j *modelJob) {
	m.made++
	j.seq = m.made
	m.jobs[j.id] = j
}

// wait lets a job wait for some hours, and then for a worker.
func (m *model) wait(j *modelJob, hours int) {
	if j.token = ""; hours > 0 {
		m.set(j, jobs.Scheduled)
		j.dueHour = m.hour + hours
	} else {
		m.set(j, jobs.Queued)
	}
	m.moved = append(m.moved, j.id)
	m.holdLock(j, hours)
}

// locker returns the job that holds a lock, "" if none.
func (m *model) locker(lock string) string {
	if l := m.locks[lock]; l != nil && l.until > m.hour && !m.over(m.jobs[l.holder]) {
		return l.holder
	}
	return ""
}

// holdLock is for a job that waits from now on, and is due in some hours.
func (m *model) holdLock(j *modelJob, hours int) {
	if j.lock == "" || j.attempt > 0 && j.dedup.Strategy != jobs.UntilExecuted {
		return
	}
	if holder := m.locker(j.lock); holder == "" || holder == j.id {
		m.locks[j.lock] = &modelLock{holder: j.id, until: m.hour + hours + int(j.dedup.TTL/time.Hour)}
	}
}

func (m *model) dropLock(j *modelJob) {
	if l := m.locks[j.lock]; l != nil && l.holder == j.id {
		delete(m.locks, j.lock)
	}
}

func (m *model) dropKey(j *modelJob) {
	if m.keys[j.key] == j.id {
		delete(m.keys, j.key)
	}
}

// end makes a job terminal. Another run may follow.
func (m *model) end(j *modelJob, s jobs.State) {
	m.dropKey(j)
	m.dropLock(j)
	follows := j.duplicates && (s != jobs.Cancelled || j.cancelled) && j.dedup != nil && j.dedup.RescheduleOnce && !(j.expires > 0 && j.expires <= m.hour)
	m.set(j, s)
	j.token, j.duplicates = "", false
	if follows {
		m.follow(j)
	}
	m.settle(j.batch)
}

func (m *model) follow(j *modelJob) {
	if holder := m.locker(j.lock); holder != "" {
		other := m.jobs[holder]
		other.duplicates = true
		for db, lsn := range j.wal {
			other.wal[db] = max(other.wal[db], lsn)
		}
		return
	}
	base, n, _ := strings.Cut(j.id, "~")
	last, _ := strconv.Atoi(n)
	id := ""
	for id == "" || m.jobs[id] != nil { // an earlier job of this id may have been followed
		last++
		id = fmt.Sprint(base, "~", last)
	}
	f := *j
	f.id, f.state, f.attempt, f.err = id, 0, 0, ""
	f.lastToken, f.cancelled, f.place = "", false, 0
	f.batch, f.after = nil, nil
	f.wal = maps.Clone(j.wal)
	if f.key != "" {
		m.keys[f.key] = id
	}
	m.add(&f)
	m.wait(&f, 0)
}

// requeue is wait for a job that was in the queue before.
func (m *model) requeue(j *modelJob, hours int) {
	j.place = 0
	m.wait(j, hours)
}

func (m *model) expire(j *modelJob) {
	j.lastToken, j.duplicates = "", false
	if j.deadIfExpired {
		m.end(j, jobs.Failed)
	} else {
		m.end(j, jobs.Expired)
	}
}

// due does what the queue must do before a claim, in its order: leases that are lost, jobs that are due, jobs that expire.
func (m *model) due() {
	lost := m.sorted(func(j *modelJob) bool { return isActive(j) && j.dueHour <= m.hour })
	slices.SortFunc(lost, func(a, b *modelJob) int {
		return cmp.Or(a.dueHour-b.dueHour, cmp.Compare(a.leased, b.leased), strings.Compare(a.activeKey(), b.activeKey()), strings.Compare(a.id, b.id))
	})
	for _, j := range lost {
		j.lastToken = ""
		switch {
		case j.cancelled:
			m.end(j, jobs.Cancelled)
		case j.attempt >= j.max:
			m.end(j, jobs.Failed)
		case j.expires > 0 && j.expires <= m.hour:
			m.expire(j)
		case j.timeout > 0 && j.deadline <= m.hour:
			m.requeue(j, 1) // for the backoff, which ends before the clock's next step
		default:
			m.set(j, jobs.Queued)
			j.token = ""
		}
	}
	for _, j := range m.sorted(func(j *modelJob) bool { return j.state == jobs.Scheduled && j.dueHour <= m.hour }) {
		if m.over(j) {
			m.expire(j)
		} else {
			m.set(j, jobs.Queued)
		}
	}
	expired := m.sorted(func(j *modelJob) bool { return m.over(j) && !j.state.Terminal() })
	slices.SortFunc(expired, func(a, b *modelJob) int {
		return cmp.Or(a.expiresAt.Compare(b.expiresAt), strings.Compare(a.id, b.id))
	})
	for _, j := range expired {
		m.expire(j)
	}
}

// activeKey orders active jobs whose leases end at the same time.
func (j *modelJob) activeKey() string {
	counts := 0
	if j.counts {
		counts = 1
	}
	if j.countsKey {
		counts += 2
	}
	if counts == 0 {
		return j.function
	}
	return j.function + "\x00" + string(rune(counts)) + j.concurrencyKey
}

// sorted returns the jobs that f accepts in the order of claims.
func (m *model) sorted(f func(*modelJob) bool) []*modelJob {
	var out []*modelJob
	for _, j := range m.jobs {
		if f == nil || f(j) {
			out = append(out, j)
		}
	}
	slices.SortFunc(out, func(a, b *modelJob) int {
		return cmp.Or(b.priority-a.priority, a.runAt.Compare(b.runAt), a.place-b.place, strings.Compare(a.id, b.id))
	})
	return out
}

// claimed delivers a job, the n-th of its transaction.
func (m *model) claimed(j *modelJob, n, leaseHours int, token string) {
	l := m.limits[j.function]
	j.counts, j.countsKey = l.MaxRunning > 0, l.MaxRunningPerKey > 0 && j.concurrencyKey != ""
	if j.concurrencyKey != "" {
		m.turns[[2]string{j.function, j.concurrencyKey}] = m.tick + int64(n)
	}
	m.set(j, jobs.Active)
	j.token, j.lastToken = token, ""
	j.attempt++
	j.deadline, j.claimedAt = m.hour+j.timeout, m.tick
	m.lease(j, leaseHours)
	if j.dedup != nil && j.dedup.Strategy != jobs.UntilExecuted {
		m.dropLock(j)
	}
}

// lease lets the lease of a job last for some hours from now on, but not beyond the attempt's deadline.
func (m *model) lease(j *modelJob, hours int) {
	j.dueHour, j.leased = m.hour+hours, m.tick
	if j.timeout > 0 && j.deadline <= j.dueHour {
		j.dueHour, j.leased = j.deadline, j.claimedAt
	}
}
