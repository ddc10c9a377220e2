// Package journal remembers in memory what this process has lately seen of keys: which calls changed an entry, from which
// caller, how often it was replayed, and which calls were refused. It explains an entry to operators. No decision depends on
// it, and it begins empty with the process. Keys with something unusual are kept longest.
package journal

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/ledger"
)

const (
	// ways is how many keys share a set. In a full set a new key displaces the one that was seen longest ago.
	ways = 8
	// maxMarks is how many changes are kept for one key; the oldest but the first go.
	maxMarks = 6
	// grace is how much longer keys are kept about which there is more to tell than a reservation, an outcome
	// and replays.
	grace = 10 * time.Minute
	// DefaultKeys is for how many keys a manager has a journal.
	DefaultKeys = 16384
	// MaxIncidents is how many incidents of each kind are kept.
	MaxIncidents = 256
)

// Journal has a fixed number of sets of keys. The key's hash chooses the set. Sets are made when they are first used. A nil Journal
// is empty and stays so.
type Journal struct {
	seed      maphash.Seed
	started   time.Time
	sets      []atomic.Pointer[set]
	incidents [incidentKinds]incidentRing
}

type set struct {
	mu    sync.Mutex
	hash  [ways]uint64 // 0: free
	lives [ways]life
}

// life is what the journal has of one key.
type life struct {
	key    string // of the record
	last   int64  // Unix milliseconds
	keep   bool   // there is more to tell
	waits  uint32
	counts [ledger.Outcomes]uint32
	marks  [maxMarks]mark
	n      uint8
	lost   uint32 // marks that went
	misfit *Incident
}

// mark is a change, or several equal ones in a row.
type mark struct {
	first, last int64 // Unix milliseconds
	from        string
	n           uint32
	op          ledger.Op
	outcome     ledger.Outcome
}

// New returns a journal of so many keys, at least 1. A key takes about 400 bytes, and never more than 2 KiB.
func New(keys int) *Journal {
	return &Journal{seed: maphash.MakeSeed(), started: time.Now(), sets: make([]atomic.Pointer[set], (keys+ways-1)/ways)}
}

// Note implements ledger.Observer.
func (j *Journal) Note(ctx context.Context, t ledger.Event) {
	if j == nil || t.Key == "" || t.Outcome == ledger.OutcomeInvalid || t.Outcome == ledger.OutcomeError {
		return
	}
	now := time.Now().UnixMilli()
	var in *Incident
	if kind, ok := incidentOf(t.Outcome); ok {
		in = j.incident(kind, ledger.CallerOf(ctx), t, now)
	}
	insert := false
	switch t.Outcome {
	case ledger.OutcomeDone, ledger.OutcomeLate:
		insert = t.Op < ledger.OpLapse
	case ledger.OutcomeRepeated, ledger.OutcomeReplayed, ledger.OutcomePending, ledger.OutcomeFenced, ledger.OutcomeUnknown, ledger.OutcomeConflict, ledger.OutcomeMismatch:
		insert = true
	}
	s, i := j.find(t.Key, insert)
	if s == nil {
		return
	}
	l := &s.lives[i]
	l.last = now
	if t.Outcome == ledger.OutcomeDone || t.Outcome == ledger.OutcomeLate {
		l.mark(mark{now, now, ledger.CallerOf(ctx), 1, t.Op, t.Outcome})
	} else {
		l.counts[t.Outcome]++
	}
	switch {
	case in != nil && t.Outcome == ledger.OutcomeMismatch:
		l.misfit = in
		fallthrough
	case in != nil, t.Outcome == ledger.OutcomeUnknown, t.Outcome == ledger.OutcomeLate, t.Op >= ledger.OpUnknown:
		l.keep = true
	}
	s.mu.Unlock()
}

// Waits implements ledger.Observer.
func (j *Journal) Waits(key string) {
	if j == nil {
		return
	}
	if s, i := j.find(key, true); s != nil {
		s.lives[i].waits++
		s.lives[i].last = time.Now().UnixMilli()
		s.mu.Unlock()
	}
}

// find returns the key's set, locked, and its place there. The set is nil if the key is not there and is not to be
// inserted.
func (j *Journal) find(key string, insert bool) (*set, int) {
	h := maphash.String(j.seed, key) | 1
	slot := &j.sets[(h>>1)%uint64(len(j.sets))]
	s := slot.Load()
	if s == nil {
		if !insert {
			return nil, 0
		}
		if s = new(set); !slot.CompareAndSwap(nil, s) {
			s = slot.Load()
		}
	}
	s.mu.Lock()
	free := 0
	for i, other := range s.hash {
		if other == h && s.lives[i].key == key {
			return s, i
		}
		if s.hash[free] != 0 && (other == 0 || s.lives[i].worth() < s.lives[free].worth()) {
			free = i
		}
	}
	if !insert {
		s.mu.Unlock()
		return nil, 0
	}
	s.hash[free], s.lives[free] = h, life{key: key}
	return s, free
}

// worth orders lives by how long they are kept.
func (l *life) worth() int64 {
	if l.keep {
		return l.last + grace.Milliseconds()
	}
	return l.last
}

// mark adds a change. Equal ones in a row become one.
func (l *life) mark(m mark) {
	if l.n > 0 {
		if last := &l.marks[l.n-1]; last.op == m.op && last.outcome == m.outcome && last.from == m.from {
			last.n++
			last.last = m.last
			return
		}
	}
	if l.n == maxMarks {
		copy(l.marks[1:], l.marks[2:]) // the first shows where the entry came from
		l.n--
		l.lost++
	}
	l.marks[l.n] = m
	l.n++
}

// History is what the journal has of a key.
type History struct {
	Scope, Key string
	// Changes are in order. If there were more than are kept, Left of them are missing after the first.
	Changes []Change
	Left    int
	// Waited is how many calls waited for an attempt to end.
	Waited int
	// Outcomes are how often calls that changed nothing ended, by the name of the ledger.Outcome.
	Outcomes map[string]int
	// Mismatch is the last call with another fingerprint, nil if there was none.
	Mismatch *Incident
	// Last is when the last call came.
	Last time.Time
}

// Change is a change of an entry, or Count equal ones in a row.
type Change struct {
	// What is reserve, renew, commit, reject, release, unknown or resolve for a call; lapse: the reservation ran out
	// without an outcome; delete: an administrator deleted it.
	What string
	// Late: the reservation was gone when the call came.
	Late bool
	// From names the caller (see ledger.WithCaller).
	From        string
	Count       int
	First, Last time.Time
}

// Since is when the journal began.
func (j *Journal) Since() time.Time {
	if j == nil {
		return time.Now()
	}
	return j.started
}

// History returns what the journal has of a key; one without Changes and Last if it has nothing.
func (j *Journal) History(scope, key string) History {
	h := History{Scope: scope, Key: key}
	if j == nil {
		return h
	}
	s, i := j.find(ledger.EntryKey(scope, key), false)
	if s == nil {
		return h
	}
	defer s.mu.Unlock()
	v := &s.lives[i]
	h.Left, h.Waited, h.Mismatch, h.Last = int(v.lost), int(v.waits), v.misfit, time.UnixMilli(v.last)
	h.Outcomes = make(map[string]int)
	for o, n := range v.counts {
		if n > 0 {
			h.Outcomes[ledger.Outcome(o).String()] = int(n)
		}
	}
	for _, m := range v.marks[:v.n] {
		h.Changes = append(h.Changes, Change{
			What: m.op.String(), Late: m.outcome == ledger.OutcomeLate, From: m.from, Count: int(m.n), First: time.UnixMilli(m.first), Last: time.UnixMilli(m.last),
		})
	}
	return h
}

// maxScopes bounds ScopesOf.
const maxScopes = 20

// ScopesOf returns scopes in which this process has lately seen a key, in order and up to 20. It looks through the whole
// journal, whose size is fixed.
func (j *Journal) ScopesOf(key string) []string {
	if j == nil {
		return nil
	}
	var scopes []string
	for i := range j.sets {
		s := j.sets[i].Load()
		if s == nil {
			continue
		}
		s.mu.Lock()
		for w := range s.lives {
			if scope, k, _ := ledger.SplitEntryKey(s.lives[w].key); k == key && s.hash[w] != 0 && len(scopes) < maxScopes {
				scopes = append(scopes, scope)
			}
		}
		s.mu.Unlock()
	}
	slices.Sort(scopes)
	return scopes
}

// IncidentKind is a kind of refusal that operators look into.
type IncidentKind uint8

// The kinds.
const (
	// IncidentMismatch: a key came with another fingerprint.
	IncidentMismatch IncidentKind = iota
	// IncidentFenced: a call's token was superseded.
	IncidentFenced
	// IncidentFull: a key found no room in the window, or its scope has its share.
	IncidentFull
	incidentKinds
)

var incidentNames = [incidentKinds]string{"mismatch", "fenced", "full"}

// String returns the name used in the API.
func (k IncidentKind) String() string { return incidentNames[k] }

// ParseIncidentKind is the inverse of String.
func ParseIncidentKind(name string) (IncidentKind, bool) {
	i := slices.Index(incidentNames[:], name)
	return IncidentKind(max(i, 0)), i >= 0
}

// incidentOf returns which kind of incident an outcome is, if any.
func incidentOf(o ledger.Outcome) (IncidentKind, bool) {
	switch o {
	case ledger.OutcomeMismatch:
		return IncidentMismatch, true
	case ledger.OutcomeFenced:
		return IncidentFenced, true
	case ledger.OutcomeFull, ledger.OutcomeOverShare:
		return IncidentFull, true
	default:
		return 0, false
	}
}

// Incident is one refused call.
type Incident struct {
	Kind       IncidentKind
	Scope, Key string
	Op         ledger.Op
	// From names the caller (see ledger.WithCaller).
	From string
	// Sent and Recorded are the fingerprints of a mismatch.
	Sent, Recorded string
	// OverShare: the window had room, and the scope had its share.
	OverShare bool
	At        time.Time
}

// incidentRing has the last incidents of a kind.
type incidentRing struct {
	mu    sync.Mutex
	ring  []*Incident
	next  int
	total uint64
}

func (j *Journal) incident(kind IncidentKind, from string, t ledger.Event, now int64) *Incident {
	in := &Incident{Kind: kind, Op: t.Op, From: from, OverShare: t.Outcome == ledger.OutcomeOverShare, At: time.UnixMilli(now)}
	in.Scope, in.Key, _ = ledger.SplitEntryKey(t.Key)
	if t.Prints != nil {
		in.Sent, in.Recorded = t.Prints.Sent, t.Prints.Recorded
	}
	r := &j.incidents[kind]
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total++
	if len(r.ring) < MaxIncidents {
		r.ring = append(r.ring, in)
	} else {
		r.ring[r.next] = in
	}
	r.next = (r.next + 1) % MaxIncidents
	return in
}

// Incidents returns the last incidents of a kind, the newest first and up to limit, and how many there were since the
// process started.
func (j *Journal) Incidents(kind IncidentKind, limit int) (list []Incident, total uint64) {
	if j == nil || kind >= incidentKinds {
		return nil, 0
	}
	r := &j.incidents[kind]
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range min(limit, len(r.ring)) {
		list = append(list, *r.ring[(r.next-1-i+2*MaxIncidents)%MaxIncidents])
	}
	return list, r.total
}
