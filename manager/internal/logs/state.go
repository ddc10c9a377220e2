package logs

import (
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// State is what a log knows besides its entries: the window, the clients, the writers, and
// the number of the next entry. It is changed by one caller at a time; only Prepare and
// Hash may be called concurrently.
type State struct {
	name     string
	identity Identity // of config; does not change
	key      HashKey

	config  Config
	next    uint64 // number of the next entry
	now     int64  // log time of the last change
	win     window
	clients clients
	writers map[string]uint64
	floor   uint64   // newest epoch of any writer that was removed
	part    *partial // nil when all is in memory

	evicted    uint64
	evictedAge time.Duration
	counters   Counters
}

// NewState is the state of a log without entries.
func NewState(name string, key HashKey, c Config) *State {
	return &State{name: name, identity: c.Identity, key: key, config: c, next: 1, writers: make(map[string]uint64)}
}

// Batch are items on their way into a log.
type Batch struct {
	items  []prepared
	atomic bool
	// Quarantine is for how much longer ids that the log does not know are refused, since it may
	// have forgotten them.
	Quarantine time.Duration
	// Outcomes are the answers, once Judge was called.
	Outcomes []Outcome
	// Accepted are the entries to write, First the number of the first of them.
	Accepted []Entry
	First    uint64
}

// Prepare makes a batch of items. It may be called by many at once.
func (s *State) Prepare(items []Item, atomic bool) *Batch {
	b := &Batch{items: make([]prepared, len(items)), atomic: atomic, Outcomes: make([]Outcome, len(items)), Accepted: make([]Entry, 0, len(items))}
	for i := range items {
		b.items[i] = s.prepare(items[i])
	}
	return b
}

// expireStep bounds how many ids one call forgets, so that no caller pays for many.
const expireStep = 4096

// Judge judges the items in order at log time now, which never goes back, and numbers those
// that are accepted. They are in the window from here on. Keep or Undo must follow.
func (s *State) Judge(b *Batch, now int64) {
	s.now = max(s.now, now)
	if s.part == nil {
		s.expire(expireStep)
	}
	b.First, b.Accepted = s.next, b.Accepted[:0]
	refused := false
	for i := range b.items {
		p := &b.items[i]
		b.Outcomes[i] = s.judge(p, b.Quarantine)
		o := &b.Outcomes[i]
		if o.Err != nil {
			refused = true
		} else if o.Number == s.next {
			s.next++
			b.Accepted = append(b.Accepted, Entry{o.Number, o.ID, p.Payload, p.Properties})
		}
	}
	if b.atomic && refused {
		s.Undo(b)
		for i := range b.Outcomes {
			if o := &b.Outcomes[i]; o.Err == nil && !o.Duplicate {
				*o = Outcome{ID: o.ID, Err: NotWritten()}
			}
		}
		// A duplicate of an item of the same batch has no entry either.
		for i := range b.Outcomes {
			if o := &b.Outcomes[i]; o.Duplicate && o.Number >= s.next {
				*o = Outcome{ID: o.ID, Err: NotWritten()}
			}
		}
	}
}

// Keep makes the accepted items stay, and counts.
func (s *State) Keep(b *Batch) {
	s.counters.Appended += uint64(len(b.Accepted))
	for i := range b.Outcomes {
		s.counters.count(&b.Outcomes[i])
	}
	if s.part != nil { // its engine forgets
		s.part.keep(&s.clients)
		s.clients.keep()
		return
	}
	s.win.keep()
	s.clients.keep()
	for s.win.len() > s.config.MaxKeys || int64(s.win.len())*slotBytes > s.config.MaxBytes {
		s.evicted++
		s.evictedAge = time.Duration(s.now - s.win.slot(s.win.head).at)
		s.win.pop()
	}
	for n := len(s.clients.byHash); n > 1 && (n > s.config.MaxKeys || s.clients.bytes() > s.config.MaxBytes); n-- {
		s.evicted++
		s.evictedAge = time.Duration(s.now - s.clients.oldest.at)
		s.clients.forget(s.clients.oldest)
	}
}

func (c *Counters) count(o *Outcome) {
	if o.Duplicate {
		c.Duplicates++
	}
	e, ok := o.Err.(*Error)
	switch {
	case o.Err == nil:
	case ok && e.P.Status == 422:
		c.Mismatches++
	case ok && e.P.Code == api.CodeSequenceGap:
		c.Gaps++
	case ok && e.P.Code == api.CodeFenced:
		c.Fenced++
	default:
		c.Refused++
	}
}

// Undo takes the accepted items back: none of them was handed to the log.
func (s *State) Undo(b *Batch) {
	if s.part != nil {
		s.part.undo()
	} else {
		s.win.undo()
	}
	s.clients.undo()
	s.next = b.First
	b.Accepted = b.Accepted[:0]
}

// expire forgets up to n ids whose time is over. It forgets no client for its age: one number
// each is little, and a client that comes back after a pause continues its sequence.
func (s *State) expire(n int) {
	for ; n > 0 && s.win.len() > 0 && s.now-s.win.slot(s.win.head).at >= int64(s.config.Window); n-- {
		s.win.pop()
	}
}

func (s *State) judge(p *prepared, quarantine time.Duration) Outcome {
	o := Outcome{ID: p.ID}
	switch {
	case p.Err != nil:
		o.Err = p.Err
	case p.Writer != "" && s.writers[p.Writer] != p.Epoch:
		if newest := s.writers[p.Writer]; newest > p.Epoch {
			o.Err = fenced("the writer %q has the newer epoch %d, this entry comes with %d", shorten(p.Writer), newest, p.Epoch)
		} else {
			o.Err = fenced("the writer %q never got epoch %d here, or was removed; its newest is %d", shorten(p.Writer), p.Epoch, newest)
		}
	case s.identity == Structured:
		s.judgeStructured(p, quarantine, &o)
	case p.ID == "":
		o.Number = s.next
	default:
		s.judgeID(p, quarantine, &o)
	}
	return o
}

func (s *State) judgeID(p *prepared, quarantine time.Duration, o *Outcome) {
	if found, ok := s.find(&p.hash, s.now); ok {
		if found.digest != p.digest {
			o.Err = mismatch()
			return
		}
		o.Number, o.Duplicate = found.number, true
		return
	}
	if quarantine > 0 {
		o.Err = Quarantined(quarantine)
		return
	}
	if s.config.RefuseWhenFull && !s.config.Fits(s.Keys()+1) {
		left := int64(s.config.Window) - (s.now - s.oldest())
		o.Err = Full(int(min(max(left/int64(time.Second)+1, 1), 3600)))
		return
	}
	o.Number = s.next
	if s.part != nil {
		s.part.add(slot{p.hash, p.digest, s.next, s.now})
	} else {
		s.win.add(slot{p.hash, p.digest, s.next, s.now})
	}
}

// find returns the newest slot with this hash that is younger than the window.
func (s *State) find(h *Hash, now int64) (*slot, bool) {
	if s.part != nil {
		return s.part.find(h, now, s.config.Window)
	}
	return s.win.find(h, now, s.config.Window)
}

// oldest is the log time of the oldest id; there must be one.
func (s *State) oldest() int64 {
	if s.part != nil {
		return s.part.oldest
	}
	return s.win.slot(s.win.head).at
}

func (s *State) judgeStructured(p *prepared, quarantine time.Duration, o *Outcome) {
	c, digest := s.clients.byHash[p.hash], binary.LittleEndian.Uint64(p.digest[:])
	switch {
	case quarantine > 0 && (c == nil || p.seq > c.last):
		o.Err = Quarantined(quarantine) // not as a gap, for which a client would start again
		return
	case c == nil && p.seq > 1:
		o.Err = gap("the client is not known with this nonce, so its first sequence must be 0 or 1, this is %d; a client that was forgotten begins again with a new nonce", p.seq)
		return
	case c == nil && s.config.RefuseWhenFull && !s.config.Fits(s.Keys()+1):
		o.Err = Full(60)
		return
	case c != nil && p.seq > c.last+1:
		o.Err = gap("the client's last sequence is %d, so %d must come next, this is %d", c.last, c.last+1, p.seq)
		return
	case c != nil && p.seq < c.first:
		o.Err = gap("the client began with sequence %d, so there is no sequence %d", c.first, p.seq)
		return
	case c != nil && p.seq <= c.last:
		if c.last-p.seq < clientDigests && c.digests[p.seq%clientDigests] != digest {
			o.Err = mismatch()
			return
		}
		o.Number, _ = c.entry(p.seq)
		o.Duplicate = true
		return
	}
	o.Number = s.next
	s.clients.advance(p.hash, p.seq, s.next, digest, s.now)
}

// Replay applies an entry that was read back, as of log time at. It must be the next one.
func (s *State) Replay(e *Entry, at int64) {
	s.now = max(s.now, at)
	s.expire(expireStep)
	p := s.prepare(Item{ID: e.ID, Payload: e.Payload})
	switch {
	case p.Err != nil || e.ID == "": // it has no id, or none that this program takes: it is only read
	case s.identity == Structured:
		s.clients.advance(p.hash, p.seq, e.Number, binary.LittleEndian.Uint64(p.digest[:]), s.now)
	default:
		s.win.add(slot{p.hash, p.digest, e.Number, s.now})
	}
	s.next = e.Number + 1
	s.Keep(&Batch{})
}

// Lookup returns the number of the entry with this id, if the window holds it. quarantine is as in Batch.
func (s *State) Lookup(id string, now int64, quarantine time.Duration) (uint64, error) {
	p := s.prepare(Item{ID: id})
	if p.Err != nil {
		return 0, p.Err
	}
	if s.identity == Structured {
		if c := s.clients.byHash[p.hash]; c != nil && p.seq <= c.last {
			if n, ok := c.entry(p.seq); ok {
				return n, nil
			}
		}
	} else if found, ok := s.find(&p.hash, max(s.now, now)); ok {
		return found.number, nil
	}
	if quarantine > 0 {
		return 0, Quarantined(quarantine)
	}
	return 0, NoSuchID()
}

// NextEpoch is the epoch that a writer would open. SetEpoch makes it the writer's newest.
func (s *State) NextEpoch(writer string) (uint64, error) {
	if _, ok := s.writers[writer]; !ok && len(s.writers) >= MaxWriters {
		return 0, TooManyWriters()
	} else if !ok {
		return s.floor + 1, nil
	}
	return s.writers[writer] + 1, nil
}

// SetEpoch sets a writer's newest epoch; 0 removes the writer. A removed writer that comes back gets
// an epoch that it never had, so what it sent before stays fenced.
func (s *State) SetEpoch(writer string, epoch uint64) {
	if epoch > 0 {
		s.writers[writer] = epoch
		return
	}
	s.floor = max(s.floor, s.writers[writer])
	delete(s.writers, writer)
}

// Writers returns up to limit writers whose names are greater than after, in order of their names.
func (s *State) Writers(after string, limit int) []Writer {
	var all []Writer
	for name, epoch := range s.writers {
		if name > after {
			all = append(all, Writer{name, epoch})
		}
	}
	slices.SortFunc(all, func(a, b Writer) int { return strings.Compare(a.Name, b.Name) })
	return all[:min(limit, len(all))]
}

// HasWriter reports whether the writer has an epoch.
func (s *State) HasWriter(writer string) bool { return s.writers[writer] > 0 }

// Config is the configuration in force.
func (s *State) Config() Config { return s.config }

// SetConfig changes it; Identity stays.
func (s *State) SetConfig(c Config) {
	c.Identity = s.identity
	s.config = c
	s.Keep(&Batch{})
}

// Next is the number that the next entry gets.
func (s *State) Next() uint64 { return s.next }

// Now is the log time of the last change.
func (s *State) Now() int64 { return s.now }

// Advance moves the log time on.
func (s *State) Advance(now int64) { s.now = max(s.now, now) }

// Fill sets what of an Info the state knows.
func (s *State) Fill(i *Info) {
	i.Name, i.Config, i.Last = s.name, s.config, s.next-1
	i.Keys, i.WindowBytes = s.win.len()+len(s.clients.byHash), s.win.bytes()+s.clients.bytes()
	i.Evicted, i.EvictedAge, i.Writers, i.Counters = s.evicted, s.evictedAge, len(s.writers), s.counters
}
