package jobstest

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// modelLimits are the part of the model about limits and concurrency keys. What runs and waits is counted from the jobs.
type modelLimits struct {
	limits map[string]jobs.Limits
	// empty is the hour at which a function's bucket had no tokens, if it had got its tokens in time since then.
	empty map[string]int
	// turns are the places of keys in the line of their function: function and concurrency key -> tick.
	turns map[[2]string]int64
}

// set changes the state of a job. A key that has work again goes to the end of the line.
func (m *model) set(j *modelJob, s jobs.State) {
	if s == jobs.Queued && j.concurrencyKey != "" {
		if others := m.sorted(func(o *modelJob) bool { return o != j && o.waitsWith(j.function, j.concurrencyKey) }); len(others) == 0 {
			m.turns[[2]string{j.function, j.concurrencyKey}] = m.tick
		}
	}
	j.state = s
}

func (j *modelJob) waitsWith(function, key string) bool {
	return j.state == jobs.Queued && j.function == function && j.concurrencyKey == key
}

// quota is how many jobs of a function may be delivered now.
func (m *model) quota(function string) int {
	l, left := m.limits[function], math.MaxInt
	if l.MaxRunning > 0 {
		running := m.sorted(func(j *modelJob) bool { return isActive(j) && j.function == function && j.counts })
		left = max(l.MaxRunning-len(running), 0)
	}
	if l.Rate.Count > 0 {
		left = min(left, l.Rate.Count)
		if empty, taken := m.empty[function]; taken {
			left = min(left, (m.hour-empty)/tokenHours(l.Rate))
		}
	}
	return left
}

// tokenHours is how long a bucket takes to get one token.
func tokenHours(r jobs.Rate) int { return int(r.Per/time.Hour) / r.Count }

// delivered counts for the limits that n jobs were delivered.
func (m *model) delivered(function string, n int) {
	r := m.limits[function].Rate
	if r.Count == 0 || n == 0 {
		return
	}
	full := m.hour - r.Count*tokenHours(r)
	if empty, taken := m.empty[function]; taken {
		full = max(full, empty)
	}
	m.empty[function] = full + n*tokenHours(r)
}

// line returns the jobs of a function with concurrency keys in the order in which they may be delivered now: the keys
// take turns, and each gives its first job.
func (m *model) line(function string) []*modelJob {
	waiting := map[string][]*modelJob{}
	for _, j := range m.sorted(func(j *modelJob) bool {
		return j.concurrencyKey != "" && j.waitsWith(function, j.concurrencyKey)
	}) {
		waiting[j.concurrencyKey] = append(waiting[j.concurrencyKey], j)
	}
	var keys []string
	for key := range waiting {
		if most := m.limits[function].MaxRunningPerKey; most > 0 {
			running := m.sorted(func(j *modelJob) bool {
				return isActive(j) && j.function == function && j.concurrencyKey == key && j.countsKey
			})
			may := max(most-len(running), 0)
			waiting[key] = waiting[key][:min(may, len(waiting[key]))]
		}
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Or(cmp.Compare(m.turns[[2]string{function, a}], m.turns[[2]string{function, b}]), strings.Compare(a, b))
	})
	var line []*modelJob
	for len(keys) > 0 {
		keys = slices.DeleteFunc(keys, func(key string) bool { return len(waiting[key]) == 0 })
		for _, key := range keys {
			line = append(line, waiting[key][0])
			waiting[key] = waiting[key][1:]
		}
	}
	return line
}

// modelLane has jobs of a function in the order in which a claim gets them: those with concurrency keys, or those without.
type modelLane struct {
	function string
	keyed    bool
	all      []*modelJob
	levels   []int // the priorities that count: in a line, no job overtakes another one
	left     []*modelJob
	level    int // of the last job that was taken
	had      int // jobs of that level that were taken
}

// next is the level of the next job.
func (l *modelLane) next() int { return l.levels[len(l.all)-len(l.left)] }

// take takes the next job.
func (l *modelLane) take() {
	if level := l.next(); l.had == 0 || level != l.level {
		l.level, l.had = level, 0
	}
	l.had++
	l.left = l.left[1:]
}

// hadOf is how many jobs of a level were taken.
func (l *modelLane) hadOf(level int) int {
	if l.level != level {
		return 0
	}
	return l.had
}

// lanes returns the lanes of a claim.
func (m *model) lanes(functions []string) []*modelLane {
	var lanes []*modelLane
	add := func(function string, keyed bool, all []*modelJob) {
		if len(all) == 0 {
			return
		}
		l := &modelLane{function: function, keyed: keyed, all: all, left: all}
		for i, j := range all {
			level := j.priority
			if keyed && i > 0 {
				level = min(level, l.levels[i-1])
			}
			l.levels = append(l.levels, level)
		}
		lanes = append(lanes, l)
	}
	for _, function := range functionNames {
		if m.paused[function] || len(functions) > 0 && !slices.Contains(functions, function) {
			continue
		}
		add(function, false, m.sorted(func(j *modelJob) bool { return j.waitsWith(function, "") }))
		add(function, true, m.line(function))
	}
	return lanes
}
