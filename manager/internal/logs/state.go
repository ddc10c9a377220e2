package logs

import (
	"encoding/binary"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// State is what a log knows besides its entries, as far as a few batches need it: ids of the window, clients, writers,
// and the number of the next entry. The rest is in a store: an engine makes a State in each transaction. It is changed by
// one caller at a time; only Prepare may be called concurrently.
type State struct {
	name     string
	identity Identity // of config; does not change
	key      HashKey

	config  Config
	next    uint64 // number of the next entry
	now     int64  // log time of the last change
	win     loadedIDs
	clients clients
	writers map[string]uint64

	counters Counters
}

// NewState returns a state with the settings and the numbers of a log of which nothing is loaded. next is the number of
// the next entry, keys how many ids, or clients, the store holds, oldest the log time of the oldest id. A state of which only
// Prepare is called needs no numbers.
func NewState(settings Settings, next uint64, now int64, keys int, oldest int64) *State {
	return &State{
		name: settings.Name, identity: settings.Config.Identity, key: settings.Key, config: settings.Config, next: next, now: now,
		win:     loadedIDs{ids: make(map[Hash]slot), keys: keys, oldest: oldest, changed: make(map[Hash]struct{})},
		clients: clients{byHash: make(map[Hash]*client)}, writers: make(map[string]uint64),
	}
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

// Judge judges the items in order at log time now, which never goes back, and numbers those
// that are accepted. They are in the window from here on.
func (s *State) Judge(b *Batch, now int64) {
	s.now = max(s.now, now)
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
		s.undo(b)
		for i := range b.Outcomes {
			if o := &b.Outcomes[i]; o.Err == nil && !o.Duplicate {
				*o = Outcome{ID: o.ID, Err: notWritten()}
			}
		}
		// A duplicate of an item of the same batch has no entry either.
		for i := range b.Outcomes {
			if o := &b.Outcomes[i]; o.Duplicate && o.Number >= s.next {
				*o = Outcome{ID: o.ID, Err: notWritten()}
			}
		}
	}
	s.counters.Appended += uint64(len(b.Accepted))
	for i := range b.Outcomes {
		s.counters.count(&b.Outcomes[i])
	}
	s.win.keep(&s.clients)
	s.clients.keep()
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

// undo takes the accepted items back.
func (s *State) undo(b *Batch) {
	s.win.undo()
	s.clients.undo()
	s.next = b.First
	b.Accepted = b.Accepted[:0]
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
	if found, ok := s.win.find(&p.hash, s.now, s.config.Window); ok {
		if found.digest != p.digest {
			o.Err = mismatch()
			return
		}
		o.Number, o.Duplicate = found.number, true
		return
	}
	if quarantine > 0 {
		o.Err = quarantined(quarantine)
		return
	}
	if s.config.RefuseWhenFull && !s.config.Fits(s.Keys()+1) {
		left := int64(s.config.Window) - (s.now - s.win.oldest)
		o.Err = Full(int(min(max(left/int64(time.Second)+1, 1), 3600)))
		return
	}
	o.Number = s.next
	s.win.add(slot{p.hash, p.digest, s.next, s.now})
}

func (s *State) judgeStructured(p *prepared, quarantine time.Duration, o *Outcome) {
	c, digest := s.clients.byHash[p.hash], binary.LittleEndian.Uint64(p.digest[:])
	switch {
	case quarantine > 0 && (c == nil || p.seq > c.last):
		o.Err = quarantined(quarantine) // not as a gap, for which a client would start again
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
	} else if found, ok := s.win.find(&p.hash, max(s.now, now), s.config.Window); ok {
		return found.number, nil
	}
	if quarantine > 0 {
		return 0, quarantined(quarantine)
	}
	return 0, noSuchID()
}

// SetEpoch sets the newest epoch of a writer; 0: it has none.
func (s *State) SetEpoch(writer string, epoch uint64) { s.writers[writer] = epoch }

// Counters are what was kept since NewState.
func (s *State) Counters() Counters { return s.counters }

// Settings are those in force.
func (s *State) Settings() Settings { return Settings{s.name, s.key, s.config} }
