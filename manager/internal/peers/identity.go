package peers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/shard"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Each data centre remembers the ledger of each peer (api.Mark): the one that last answered at the peer's URL. It tells the
// peer so with each call, and each answer says what the peer remembers of the caller.
//
//   - A ledger that is behind what a peer remembers begins a quarantine, as it does when a gate remembers more (package
//     shard). It then gets back what the peers hold of its outcomes.
//   - A new ledger begins in quarantine until all of its peers have said that they remember no other one.
//   - Where a peer remembers another ledger that still answers, two ledgers have one origin. The one that does not answer at
//     the peer's URL takes no new keys.

// Self is this data centre's own ledger.
type Self interface {
	// Mark is what others are to remember of it.
	Mark() api.Mark
	// Meet compares it with what a peer remembers of it; see shard.Keeper.
	Meet(ctx context.Context, m api.Mark, from string) error
	// Trust notes that no peer remembers another ledger.
	Trust(ctx context.Context) error
	// Fence keeps the ledger from taking new keys for a while. Another one with its origin answers.
	Fence(ctx context.Context, why string) error
	// Left is for how much longer the ledger is in quarantine.
	Left() time.Duration
	// Longest is the longest time for which it remembers a key.
	Longest() time.Duration
}

// FenceFor is for how long a ledger takes no new keys after a peer said that another one has its origin (Self.Fence). Peers
// are asked more often.
const FenceFor = time.Minute

// never is the age of an answer that there was none of.
const never = time.Duration(math.MaxInt64)

// remembered is what the record has of the peer's ledger, at a time of the store; "" when nothing counts any more.
func (r *record) remembered(now int64, longest time.Duration) string {
	if r.Ledger == "" || time.Duration(now-r.LedgerAt)*time.Millisecond > longest {
		return ""
	}
	return r.Ledger
}

// tell adds to a call what this data centre remembers of the peer's ledger, and what its own is.
func (p *Puller) tell(s *state, r *http.Request) {
	if p.opts.Self == nil {
		return
	}
	s.mu.Lock()
	remembered := s.remembered
	s.mu.Unlock()
	if remembered != "" {
		r.Header.Set(api.HeaderLedger, remembered)
	}
	r.Header.Set(api.HeaderPeerLedger, p.opts.Self.Mark().String())
}

// hear takes note of an answer: which ledger gave it, and what it remembers of this one. A peer that refused the call, and
// something on the way that answered instead, do not count.
func (p *Puller) hear(ctx context.Context, s *state, h http.Header, status int) error {
	text := h.Get(api.HeaderLedger)
	if p.opts.Self == nil || text == "" || status != http.StatusOK && status != http.StatusGone {
		return nil
	}
	m, ok := api.ParseMark(text)
	if !ok {
		return fmt.Errorf("the peer's %s is malformed", api.HeaderLedger)
	}
	s.mu.Lock()
	was, _ := api.ParseMark(s.remembered)
	s.met = time.Now()
	if was.ID != m.ID || m.Epoch > was.Epoch || m.Epoch == was.Epoch && m.Position >= was.Position { // an answer may be late
		s.remembered = text
	}
	s.mu.Unlock()
	if was.ID != "" && was.ID != m.ID {
		p.opts.Log.Warn("a peer has another ledger than before; it replaces the earlier one", "peer", s.peer.Name, "ledger", m.ID, "before", was.ID)
	}
	return p.heard(ctx, s, h.Get(api.HeaderKnownLedger))
}

// heard compares what a peer remembers of this ledger with it.
func (p *Puller) heard(ctx context.Context, s *state, known string) (err error) {
	self := p.opts.Self
	text, age, _ := strings.Cut(known, ";")
	m, ok := api.ParseMark(text)
	if known != "" && !ok {
		return fmt.Errorf("the peer's %s is malformed", api.HeaderKnownLedger)
	}
	fenced := ""
	if ok {
		err = self.Meet(ctx, m, "the data centre "+s.peer.Name)
		var other *shard.OtherError
		if silent, bad := strconv.ParseInt(age, 10, 64); m.ID != self.Mark().ID && bad == nil && time.Duration(silent)*time.Millisecond < time.Since(p.began) {
			fenced = fmt.Sprintf("two ledgers have the origin %s: the data centre %s uses the ledger %s, and this is %s", p.opts.Network.Origin(), s.peer.Name, m.ID, self.Mark().ID)
			err = self.Fence(ctx, fenced)
		} else if errors.As(err, &other) {
			err = nil // the other one is gone, and so is all that it knew
		}
	}
	s.mu.Lock()
	was := s.fenced
	s.fenced, s.trusts = fenced, err == nil && fenced == ""
	s.mu.Unlock()
	if was == "" && fenced != "" {
		p.opts.Log.Error("ALARM: " + fenced + "; this one takes no new keys")
	}
	if err != nil {
		return err
	}
	for _, o := range p.states {
		o.mu.Lock()
		trusts := o.trusts
		o.mu.Unlock()
		if !trusts {
			return nil
		}
	}
	return self.Trust(ctx)
}

// Known is what this data centre says to a peer about the peer's ledger (api.HeaderKnownLedger). own is the mark that the
// peer's call has of its ledger. It is remembered if no other is: of two ledgers that have one origin from the start, the
// first is the origin's. Errors: the store's.
func (p *Puller) Known(ctx context.Context, peer, own string) (string, error) {
	for _, s := range p.states {
		if s.peer.Name != peer || p.opts.Self == nil {
			continue
		}
		if _, ok := api.ParseMark(own); !ok {
			own = ""
		}
		s.mu.Lock()
		text, met := s.remembered, s.met
		if met.IsZero() && s.away { // another manager of the store asks the peer
			met = s.caughtUp
		}
		s.mu.Unlock()
		if text == "" && own != "" {
			var err error
			if text, err = p.remember(ctx, s, own); err != nil {
				return "", err
			}
		}
		silent := never
		if !met.IsZero() {
			silent = time.Since(met)
		}
		return text + ";" + strconv.FormatInt(silent.Milliseconds(), 10), nil
	}
	return "", nil
}

// remember stores the mark of a peer's ledger, unless another one is remembered, and returns the one that is.
func (p *Puller) remember(ctx context.Context, s *state, own string) (text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = p.opts.Store.Update(ctx, func(tx store.Tx) error {
		r, err := get(tx, s.peer.Name)
		if err != nil {
			return err
		}
		now := tx.Now().UnixMilli()
		if text = r.remembered(now, p.opts.Self.Longest()); text != "" {
			return nil
		}
		text, r.Ledger, r.LedgerAt = own, own, now
		return r.put(tx, s.peer.Name)
	})
	if err == nil {
		s.mu.Lock()
		s.remembered = text
		s.mu.Unlock()
	}
	return text, err
}

// noteLedger puts what is remembered of the peer's ledger into the record, at a time of the store.
func (s *state) noteLedger(r *record, now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.remembered == "" {
		return
	}
	r.Ledger, r.Trusts = s.remembered, s.trusts
	if !s.met.IsZero() {
		r.LedgerAt = max(r.LedgerAt, now-time.Since(s.met).Milliseconds())
	}
}

// ledgerChanged reports whether the record is behind what is remembered of the peer's ledger.
func (s *state) ledgerChanged(r *record) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ledgerOf(s.remembered) != ledgerOf(r.Ledger) || s.trusts != r.Trusts || s.met.Sub(s.noted) > time.Hour
}

// ledgerOf is a mark without its position.
func ledgerOf(mark string) string {
	if i := strings.LastIndexByte(mark, '.'); i >= 0 {
		return mark[:i]
	}
	return mark
}

// recoverOwn imports the outcomes of this ledger that a peer holds and that it has forgotten.
func (p *Puller) recoverOwn(ctx context.Context, s *state) error {
	origin := p.opts.Network.Origin()
	span, missing, err := p.differences(ctx, s, origin)
	if err != nil {
		return err
	}
	recovered := 0
	defer func() {
		if recovered > 0 {
			p.opts.Log.Warn("forgotten outcomes of this data centre were recovered from a peer", "peer", s.peer.Name, "outcomes", recovered)
		}
	}()
	for _, from := range slices.Sorted(maps.Keys(missing)) {
		err := p.span(ctx, s, origin, from, from+span, func(changes []ledger.FeedChange) error {
			done, err := p.opts.Feed.Recover(ctx, changes)
			recovered += done.New
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
