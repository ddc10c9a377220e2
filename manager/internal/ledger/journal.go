package ledger

import (
	"context"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The journal remembers in memory what this process has lately seen of keys: which calls changed an entry, from which
// caller, how often it was replayed, and which calls were refused. It explains an entry to operators. No decision
// depends on it, and it begins empty with the process.

const (
	// journalWays is how many keys share a set. In a full set a new key displaces the one that was seen longest ago.
	journalWays = 8
	// journalMarks is how many changes are kept for one key; the oldest but the first go.
	journalMarks = 6
	// journalGrace is how much longer keys are kept about which there is more to tell than a reservation, an outcome
	// and replays.
	journalGrace = 10 * time.Minute
	// maxCaller bounds the name of a caller in bytes.
	maxCaller = 64
	// MaxIncidents is how many incidents of each kind are kept.
	MaxIncidents = 256
)

// Changes that no call makes, as operations of the journal.
const (
	opLapse Op = opCount + iota
	opDelete
)

var changeNames = [...]string{"lapse", "delete"}

// journal has a fixed number of sets. The key's hash chooses the set. Sets are made when they are first used.
type journal struct {
	seed      maphash.Seed
	started   time.Time
	sets      []atomic.Pointer[journalSet]
	incidents [incidentKinds]incidentRing
}

type journalSet struct {
	mu    sync.Mutex
	hash  [journalWays]uint64 // 0: free
	lives [journalWays]life
}

// life is what the journal has of one key.
type life struct {
	key    string // of the record
	last   int64  // Unix milliseconds
	keep   bool   // there is more to tell
	waits  uint32
	counts [outcomeCount]uint32
	marks  [journalMarks]mark
	n      uint8
	lost   uint32 // marks that went
	misfit *Incident
}

// mark is a change, or several equal ones in a row.
type mark struct {
	first, last int64 // Unix milliseconds
	from        string
	n           uint32
	op          Op
	outcome     Outcome
}

func newJournal(keys int) *journal {
	if keys < 0 {
		return nil
	}
	return &journal{seed: maphash.MakeSeed(), started: time.Now(), sets: make([]atomic.Pointer[journalSet], (keys+journalWays-1)/journalWays)}
}

// callerKey is where a context has the name of the caller.
type callerKey struct{}

// caller is a context with the name of the caller.
type caller struct {
	context.Context
	name string
}

// Value returns the caller itself for callerKey.
func (c *caller) Value(key any) any {
	if key == (callerKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// WithCaller returns a context whose calls the journal notes as from that caller: up to 64 bytes, for example the
// address of a gate. The port of an address is left out.
func WithCaller(ctx context.Context, name string) context.Context {
	if i := strings.LastIndexByte(name, ':'); i > 0 && strings.Count(name, ":") == 1 || i > 0 && name[i-1] == ']' {
		name = name[:i]
	}
	return &caller{ctx, name[:min(len(name), maxCaller)]}
}

// callerOf returns the name that WithCaller set, or "".
func callerOf(ctx context.Context) string {
	if c, ok := ctx.Value(callerKey{}).(*caller); ok {
		return c.name
	}
	return ""
}

// note adds one call or change that is about t.key.
func (j *journal) note(ctx context.Context, t tally) {
	if j == nil || t.key == "" || t.outcome == OutcomeInvalid || t.outcome == OutcomeError {
		return
	}
	now := time.Now().UnixMilli()
	var in *Incident
	if kind, ok := incidentOf(t.outcome); ok {
		in = j.incident(kind, callerOf(ctx), t, now)
	}
	insert := false
	switch t.outcome {
	case OutcomeDone, OutcomeLate:
		insert = t.op < opCount
	case OutcomeRepeated, OutcomeReplayed, OutcomePending, OutcomeFenced, OutcomeUnknown, OutcomeConflict, OutcomeMismatch:
		insert = true
	}
	s, i := j.find(t.key, insert)
	if s == nil {
		return
	}
	l := &s.lives[i]
	l.last = now
	if t.outcome == OutcomeDone || t.outcome == OutcomeLate {
		l.mark(mark{now, now, callerOf(ctx), 1, t.op, t.outcome})
	} else {
		l.counts[t.outcome]++
	}
	switch {
	case in != nil && t.outcome == OutcomeMismatch:
		l.misfit = in
		fallthrough
	case in != nil, t.outcome == OutcomeUnknown, t.outcome == OutcomeLate, t.op >= OpUnknown:
		l.keep = true
	}
	s.mu.Unlock()
}

// waited adds a call that began to wait for the key.
func (j *journal) waited(key string) {
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
func (j *journal) find(key string, insert bool) (*journalSet, int) {
	h := maphash.String(j.seed, key) | 1
	slot := &j.sets[(h>>1)%uint64(len(j.sets))]
	s := slot.Load()
	if s == nil {
		if !insert {
			return nil, 0
		}
		if s = new(journalSet); !slot.CompareAndSwap(nil, s) {
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
		return l.last + journalGrace.Milliseconds()
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
	if l.n == journalMarks {
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
	// Waited is how many calls waited for an attempt to end, Waiting how many do now.
	Waited, Waiting int
	// Outcomes are how often calls that changed nothing ended, by the name of the Outcome.
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
	// From names the caller (see WithCaller).
	From        string
	Count       int
	First, Last time.Time
}

// Since is when the journal began.
func (l *Ledger) Since() time.Time {
	if l.journal == nil {
		return time.Now()
	}
	return l.journal.started
}

// History returns what this process has lately seen of a key; the zero History without Changes and Last if it has seen
// nothing, or does not remember it.
func (l *Ledger) History(scope, key string) History {
	h := History{Scope: scope, Key: key}
	rk := recordKey(scope, key)
	h.Waiting = l.waits.of(rk)
	if l.journal == nil {
		return h
	}
	s, i := l.journal.find(rk, false)
	if s == nil {
		return h
	}
	defer s.mu.Unlock()
	v := &s.lives[i]
	h.Left, h.Waited, h.Mismatch, h.Last = int(v.lost), int(v.waits), v.misfit, time.UnixMilli(v.last)
	h.Outcomes = make(map[string]int)
	for o, n := range v.counts {
		if n > 0 {
			h.Outcomes[Outcome(o).String()] = int(n)
		}
	}
	for _, m := range v.marks[:v.n] {
		name := ""
		if m.op < opCount {
			name = m.op.String()
		} else {
			name = changeNames[m.op-opCount]
		}
		h.Changes = append(h.Changes, Change{
			What: name, Late: m.outcome == OutcomeLate, From: m.from, Count: int(m.n), First: time.UnixMilli(m.first), Last: time.UnixMilli(m.last),
		})
	}
	return h
}

// maxScopes bounds ScopesOf.
const maxScopes = 20

// ScopesOf returns scopes in which this process has lately seen a key, in order and up to 20. It looks through the whole
// journal, whose size is fixed.
func (l *Ledger) ScopesOf(key string) []string {
	if l.journal == nil {
		return nil
	}
	var scopes []string
	for i := range l.journal.sets {
		s := l.journal.sets[i].Load()
		if s == nil {
			continue
		}
		s.mu.Lock()
		for w := range s.lives {
			if len(scopes) < maxScopes && isOfKey(s.lives[w].key, key) {
				scope, _, _ := splitRecordKey(s.lives[w].key)
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
func incidentOf(o Outcome) (IncidentKind, bool) {
	switch o {
	case OutcomeMismatch:
		return IncidentMismatch, true
	case OutcomeFenced:
		return IncidentFenced, true
	case OutcomeFull, OutcomeOverShare:
		return IncidentFull, true
	default:
		return 0, false
	}
}

// Incident is one refused call.
type Incident struct {
	Kind       IncidentKind
	Scope, Key string
	Op         Op
	// From names the caller (see WithCaller).
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

// prints are the fingerprints of a mismatch.
type prints struct{ sent, recorded string }

func (j *journal) incident(kind IncidentKind, from string, t tally, now int64) *Incident {
	in := &Incident{Kind: kind, Op: t.op, From: from, OverShare: t.outcome == OutcomeOverShare, At: time.UnixMilli(now)}
	in.Scope, in.Key, _ = splitRecordKey(t.key)
	if t.prints != nil {
		in.Sent, in.Recorded = t.prints.sent, t.prints.recorded
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
func (l *Ledger) Incidents(kind IncidentKind, limit int) (list []Incident, total uint64) {
	if l.journal == nil || kind >= incidentKinds {
		return nil, 0
	}
	r := &l.journal.incidents[kind]
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range min(limit, len(r.ring)) {
		list = append(list, *r.ring[(r.next-1-i+2*MaxIncidents)%MaxIncidents])
	}
	return list, r.total
}

// differing returns the fingerprints for the journal, which keeps them longer than the call.
func differing(e *record, sent string) *prints {
	return &prints{strings.Clone(sent), string(e.fingerprint)}
}
