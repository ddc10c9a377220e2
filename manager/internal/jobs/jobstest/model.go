package jobstest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// model is the queue as plain maps. Its times are whole hours. The property test
// moves the clock by whole hours only. Real time that passes during the test makes
// nothing due that is not due by the model's hours as well.
type model struct {
	hour   int
	jobs   map[string]*modelJob
	keys   map[string]string // key -> job
	locks  map[string]*modelLock
	paused map[string]bool
}

type modelJob struct {
	id, function, key string
	payload           string
	priority          int
	state             jobs.State
	attempt, max      int
	runAt             time.Time // as the queue reported it
	dueHour           int       // scheduled: run_at; active: end of the lease
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
	timeout, deadline int // hours
}

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
		paused: map[string]bool{},
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

// created records the new job that the queue made.
func (m *model) created(s *jobs.Submission, j jobs.Job) {
	mj := &modelJob{
		id: j.ID, function: s.Function, key: s.Key, payload: string(s.Payload), priority: s.Priority, state: jobs.Queued,
		max: s.MaxAttempts, runAt: j.RunAt, dedup: s.Dedup, wal: map[string]jobs.LSN{},
	}
	if s.ExpiresIn > 0 {
		mj.expires, mj.deadIfExpired = m.hour+int(s.ExpiresIn/time.Hour), s.DeadIfExpired
	}
	mj.timeout = int(s.Timeout / time.Hour)
	if s.Delay > 0 {
		mj.state, mj.dueHour = jobs.Scheduled, m.hour+int(s.Delay/time.Hour)
	}
	for _, w := range s.WALLocations {
		mj.wal[w.Database] = w.LSN
	}
	m.jobs[j.ID] = mj
	if s.Key != "" {
		m.keys[s.Key] = j.ID
	}
	if s.Dedup != nil {
		mj.lock = m.identity(s)
	}
	m.holdLock(mj, int(s.Delay/time.Hour))
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

// end makes a job terminal and returns the id of the run that must follow; "": none.
func (m *model) end(j *modelJob, s jobs.State) string {
	m.dropKey(j)
	m.dropLock(j)
	duplicates := j.duplicates
	j.state, j.token, j.duplicates = s, "", false
	if !duplicates || s == jobs.Cancelled && !j.cancelled || j.dedup == nil || !j.dedup.RescheduleOnce || j.expires > 0 && j.expires <= m.hour {
		return ""
	}
	if holder := m.locker(j.lock); holder != "" {
		other := m.jobs[holder]
		other.duplicates = true
		for db, lsn := range j.wal {
			other.wal[db] = max(other.wal[db], lsn)
		}
		return ""
	}
	base, n, found := strings.Cut(j.id, "~")
	id := j.id + "~1"
	if found {
		var v int
		_, _ = fmt.Sscan(n, &v)
		id = fmt.Sprintf("%s~%d", base, v+1)
	}
	f := *j
	f.id, f.state, f.attempt, f.err = id, jobs.Queued, 0, ""
	f.lastToken, f.cancelled, f.runAt = "", false, time.Time{}
	f.wal = map[string]jobs.LSN{}
	for db, lsn := range j.wal {
		f.wal[db] = lsn
	}
	m.holdLock(&f, 0)
	if f.key != "" {
		m.keys[f.key] = id
	}
	m.jobs[id] = &f
	return id
}

func (m *model) expire(j *modelJob) {
	j.lastToken, j.duplicates = "", false
	if j.deadIfExpired {
		m.end(j, jobs.Failed)
	} else {
		m.end(j, jobs.Expired)
	}
}

// due does what the queue must do before a claim. It returns the jobs whose run_at is new: runs that follow from jobs that
// failed, and jobs that wait after a timeout.
func (m *model) due() (moved []string) {
	for _, j := range m.sorted(nil) {
		switch {
		case m.over(j) && !j.state.Terminal():
			m.expire(j)
		case j.state == jobs.Scheduled && j.dueHour <= m.hour:
			j.state = jobs.Queued
		case j.state == jobs.Active && j.dueHour <= m.hour:
			j.lastToken = ""
			switch {
			case j.cancelled:
				if id := m.end(j, jobs.Cancelled); id != "" {
					moved = append(moved, id)
				}
			case j.attempt >= j.max:
				if id := m.end(j, jobs.Failed); id != "" {
					moved = append(moved, id)
				}
			case j.expires > 0 && j.expires <= m.hour:
				m.expire(j)
			case j.timeout > 0 && j.deadline <= m.hour:
				// It waits for the backoff, which ends before the clock's next step.
				j.state, j.token, j.dueHour = jobs.Scheduled, "", m.hour+1
				moved = append(moved, j.id)
				m.holdLock(j, 1)
			default:
				j.state, j.token = jobs.Queued, ""
			}
		}
	}
	return moved
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
		return cmp.Or(b.priority-a.priority, a.runAt.Compare(b.runAt), strings.Compare(a.id, b.id))
	})
	return out
}

// claimable are the jobs that a claim must see, in order.
func (m *model) claimable(functions []string) []*modelJob {
	return m.sorted(func(j *modelJob) bool {
		return j.state == jobs.Queued && !m.paused[j.function] && (len(functions) == 0 || slices.Contains(functions, j.function))
	})
}

func (m *model) claimed(j *modelJob, leaseHours int, token string) {
	j.state, j.token, j.lastToken, j.dueHour = jobs.Active, token, "", m.hour+leaseHours
	j.attempt++
	if j.timeout > 0 {
		j.deadline = m.hour + j.timeout
		j.dueHour = min(j.dueHour, j.deadline)
	}
	if j.dedup != nil && j.dedup.Strategy != jobs.UntilExecuted {
		m.dropLock(j)
	}
}
