package peers

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/feed"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// pulls has a record for each peer: how far this data centre is in the peer's feed.
const pulls store.Collection = "pulls"

// Owns reports whether a collection is one of this package's, which have no answers.
func Owns(c store.Collection) bool { return c == pulls }

const (
	// pullWait is how long a peer holds a call that has nothing new to answer, pullPatience how much longer its answer
	// may take to begin, and pullTime how long a page may take. Together with maxBackoff they bound how long a
	// connection that heals stays unused.
	pullWait     = 3 * time.Second
	pullPatience = 4 * time.Second
	pullTime     = 30 * time.Second
	// pullSlack is how much longer than it was asked to hold a call a peer takes at most while all is well.
	pullSlack  = time.Second
	minBackoff = 50 * time.Millisecond
	maxBackoff = 2 * time.Second
	// lease is how long one of several managers on a store pulls from a peer before another one may.
	lease = 15 * time.Second
	// maxPage bounds an answer: a page's changes, of which one may be as large as the ledger lets it.
	maxPage = 32 << 20
	// maxSaid is more than the longest list of data centres.
	maxSaid     = (MaxPeers + 2) * (MaxNameBytes + 1)
	pathChanges = "/v1/ledger/changes"
	// pageChanges is how many changes a page has at most.
	pageChanges = 500
)

// Options configure a Puller.
type Options struct {
	Network *Network
	Feed    *feed.Feed
	Store   store.Store
	Log     *slog.Logger
	// CheckEvery is how often digests are compared. Default 30 s.
	CheckEvery time.Duration
	// Jitter returns a duration from 0 to below d. Default a random one.
	Jitter func(d time.Duration) time.Duration
	// Lists sends peers this data centre's list of them, and notes theirs; nil: lists are neither sent nor noted.
	Lists interface {
		Said() string
		Meet(said string)
	}
	// Self is this data centre's ledger; nil: nothing about it is exchanged.
	Self Self
}

// Puller pulls the feeds of all peers into the ledger. Of the managers on one store, one pulls from each peer.
type Puller struct {
	opts   Options
	id     string
	began  time.Time
	states []*state
}

// state is what this manager knows of one peer.
type state struct {
	peer Peer

	mu       sync.Mutex
	record   record
	until    time.Time // when a call in which nothing is known to be missing is late
	caughtUp time.Time
	answered time.Time
	err      string
	// checkErr is why the last comparison failed. comparing: one is under way.
	checkErr  string
	comparing bool
	// refusal is why the last change was refused, "" once a comparison found that nothing refused is missing.
	refusal string
	// missing is how many outcomes the last comparison could not repair.
	missing uint64

	// remembered is the mark of the peer's ledger, met when that answered this manager last, and noted when that came into
	// the record. away: another manager of the store asks the peer.
	remembered string
	met, noted time.Time
	away       bool
	// trusts: the peer remembers no other ledger than this one. fenced is why this one takes no new keys.
	trusts bool
	fenced string

	repaired, copies, failures, refused atomic.Uint64
	check                               check
	nextCheck                           time.Time // pull's
	// hasty is the last pause after an answer that came too early. It is pull's.
	hasty time.Duration
	// asideUntil: until then another manager may pull, because of aside. Both are pull's.
	asideUntil time.Time
	aside      error
}

// record is kept in the store.
type record struct {
	Version int    `json:"version"`
	Cursor  string `json:"cursor"`
	// Head and Sequence are as the last page said.
	Head     uint64 `json:"head"`
	Sequence uint64 `json:"sequence"`
	// Holder pulls until Until, and had everything at CaughtUp; both are times of the store, in Unix milliseconds.
	Holder   string `json:"holder,omitempty"`
	Until    int64  `json:"until,omitempty"`
	CaughtUp int64  `json:"caught_up,omitempty"`
	Error    string `json:"error,omitempty"`
	// Said is what the peer said last about its list of data centres. All managers on the store note it, and a manager
	// that starts does not have to wait for the peer.
	Said string `json:"said,omitempty"`
	// Ledger is the mark of the peer's ledger, and LedgerAt is about when that answered last, by the store's clock in Unix
	// milliseconds.
	Ledger   string `json:"ledger,omitempty"`
	LedgerAt int64  `json:"ledger_at,omitempty"`
	// Trusts: the peer remembers no other ledger than this one. Each of the managers on a store asks some of the peers.
	Trusts bool `json:"trusts,omitempty"`
}

// New returns a puller, which Run starts.
func New(o Options) *Puller {
	o.CheckEvery = cmp.Or(o.CheckEvery, 30*time.Second)
	if o.Jitter == nil {
		o.Jitter = func(d time.Duration) time.Duration { return time.Duration(mathrand.Int64N(int64(d))) }
	}
	p := &Puller{opts: o, id: rand.Text(), began: time.Now()}
	for _, peer := range o.Network.Peers() {
		p.states = append(p.states, &state{peer: peer, caughtUp: time.Now()})
	}
	return p
}

// Run pulls until ctx ends.
func (p *Puller) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, s := range p.states {
		all.Go(func() { p.pull(ctx, s) })
	}
	all.Wait()
}

func (p *Puller) pull(ctx context.Context, s *state) {
	// A comparison may take long, and changes are pulled meanwhile.
	var comparing sync.WaitGroup
	defer comparing.Wait()
	backoff := minBackoff
	for ctx.Err() == nil {
		mine, err := p.hold(ctx, s)
		if err == nil && !mine {
			_ = store.Wait(ctx, maxBackoff)
			continue
		}
		if err == nil {
			err = p.step(ctx, s)
		}
		if err == nil && p.mayCompare(s) {
			comparing.Go(func() { p.noteCompared(s, p.compare(ctx, s)) })
		}
		if ctx.Err() != nil {
			return
		}
		if mine && store.ReadableElsewhere(err) {
			s.asideUntil, s.aside = time.Now().Add(2*lease), errors.Join(err, p.leave(ctx, s))
		}
		p.note(s, err)
		if err == nil {
			backoff = minBackoff
			continue
		}
		_ = store.Wait(ctx, backoff+p.opts.Jitter(backoff))
		backoff = min(2*backoff, maxBackoff)
	}
}

// note logs when calls begin to fail, and when they succeed again.
func (p *Puller) note(s *state, err error) {
	text := ""
	if err != nil {
		text = err.Error()
		s.failures.Add(1)
	}
	s.mu.Lock()
	was := s.err
	s.err = text
	s.mu.Unlock()
	switch {
	case was == "" && err != nil:
		p.opts.Log.Warn("pulling outcomes from a peer failed; retrying", "peer", s.peer.Name, "url", s.peer.URL, "error", text)
	case was != "" && err == nil:
		p.opts.Log.Info("pulling outcomes from a peer works again", "peer", s.peer.Name)
	}
}

// hold reads how far this data centre is, and on engines that several managers share makes sure that only one pulls. A
// manager that lacks a key which the others have leaves it to them for a while.
func (p *Puller) hold(ctx context.Context, s *state) (mine bool, err error) {
	if time.Now().Before(s.asideUntil) {
		return false, s.aside
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	shared := p.opts.Store.Capabilities().Shared
	var r record
	now := int64(0)
	work := func(tx store.Tx) error {
		var err error
		if r, err = get(tx, s.peer.Name); err != nil {
			return err
		}
		now = tx.Now().UnixMilli()
		if mine = !shared || r.Holder == p.id || now >= r.Until; !mine || !shared || r.Holder == p.id && r.Until-now > lease.Milliseconds()/2 {
			return nil
		}
		was := r.Holder
		r.Holder, r.Until = p.id, now+lease.Milliseconds()
		s.mu.Lock()
		r.Error = cmp.Or(s.err, s.lacks())
		if was == p.id { // the others see that nothing new is no lag
			r.CaughtUp = max(r.CaughtUp, now-time.Since(s.caughtUp).Milliseconds())
		}
		s.mu.Unlock()
		s.noteLedger(&r, now)
		return r.put(tx, s.peer.Name)
	}
	if shared {
		err = p.opts.Store.Update(ctx, work)
	} else {
		err = p.opts.Store.View(ctx, work)
	}
	if errors.Is(err, store.ErrConflict) {
		return false, nil // another manager takes it
	}
	if err != nil {
		return false, fmt.Errorf("the cursor cannot be read: %w", err)
	}
	p.meet(r.Said)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record, s.away = r, !mine
	if !mine {
		s.trusts = r.Trusts
	}
	if s.remembered == "" && p.opts.Self != nil {
		s.remembered = r.remembered(now, p.opts.Self.Longest())
	}
	if !mine {
		s.caughtUp, s.err = time.Now(), r.Error
		if age := time.Duration(now-r.CaughtUp) * time.Millisecond; age > lease { // the holder notes it at half the lease
			s.caughtUp = s.caughtUp.Add(-age)
		}
	}
	return mine, nil
}

// leave lets another manager pull at once.
func (p *Puller) leave(ctx context.Context, s *state) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return p.opts.Store.Update(ctx, func(tx store.Tx) error {
		r, err := get(tx, s.peer.Name)
		if err != nil || r.Holder != p.id {
			return err
		}
		r.Holder, r.Until = "", 0
		return r.put(tx, s.peer.Name)
	})
}

// meet notes what a peer said about its list.
func (p *Puller) meet(said string) {
	if p.opts.Lists != nil && said != "" {
		p.opts.Lists.Meet(said)
	}
}

func get(tx store.Tx, peer string) (record, error) {
	return store.Read(tx, pulls, peer, func(_ string, b []byte) (r record, _ error) {
		if json.Unmarshal(b, &r) != nil || r.Version != 1 {
			return record{}, nil // it begins again: imports that are known change nothing
		}
		return r, nil
	})
}

func (r *record) put(tx store.Tx, peer string) error {
	r.Version = 1
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return tx.Put(pulls, peer, b)
}

// step pulls one page.
func (p *Puller) step(ctx context.Context, s *state) error {
	s.mu.Lock()
	r, wait := s.record, pullWait
	// A peer holds the call only while it has nothing new. The first call does not wait: its answer has the list of data centres.
	if s.err != "" || s.answered.IsZero() {
		wait = 0
	}
	if s.until.IsZero() && time.Since(s.caughtUp) < pullWait {
		s.until = time.Now().Add(wait + pullSlack)
	}
	s.mu.Unlock()
	q := url.Values{"origin": {s.peer.Name}, "after": {r.Cursor}, "wait_ms": {strconv.FormatInt(wait.Milliseconds(), 10)}, "limit": {strconv.Itoa(pageChanges)}}
	began := time.Now()
	body, status, said, err := p.call(ctx, s, pathChanges, q, wait)
	p.meet(said)
	if err == nil && status == http.StatusGone {
		p.opts.Log.Warn("a peer's feed does not go back far enough; all outcomes of the peer are copied", "peer", s.peer.Name, "cursor", r.Cursor)
		s.copies.Add(1)
		_, err := p.keep(ctx, s, nil, record{Ledger: r.Ledger, LedgerAt: r.LedgerAt})
		return err
	}
	var f *feed.Page
	if err == nil {
		f, err = pageOf(body, status, s.peer.Name)
	}
	if err != nil {
		s.mu.Lock()
		s.until = time.Time{}
		s.mu.Unlock()
		return err
	}
	next := record{Cursor: f.Cursor, Head: f.Head, Sequence: f.Sequence, Said: said, Ledger: r.Ledger, LedgerAt: r.LedgerAt}
	whole := !f.Copying && f.Sequence >= f.Head
	if f.Cursor != r.Cursor || len(f.Changes) > 0 || f.Head != r.Head || said != r.Said || s.ledgerChanged(&r) {
		notes, err := p.keep(ctx, s, f.Changes, next)
		if err == nil && len(notes) > 0 {
			if _, err = p.settle(ctx, s, notes); err == nil {
				_, err = p.keep(ctx, s, nil, next)
			}
		}
		if err != nil {
			return err
		}
	}
	// A peer holds a call until it has something new. One that does not, because it stops or is out of order, is asked less and
	// less. While this data centre lags, pages of outcomes that have expired are empty, too.
	readOn := f.Copying && f.Cursor != r.Cursor || r.Sequence < r.Head && f.Sequence > r.Sequence
	if len(f.Changes) == 0 && wait > 0 && time.Since(began) < minBackoff && !readOn {
		s.hasty = min(max(2*s.hasty, minBackoff), maxBackoff)
		_ = store.Wait(ctx, s.hasty)
	} else {
		s.hasty = 0
	}
	s.mu.Lock()
	s.until = time.Time{}
	s.answered = time.Now()
	if whole {
		s.caughtUp = s.answered
	}
	s.mu.Unlock()
	return nil
}

// pageOf checks an answer: a peer may be another data centre than its name says.
func pageOf(body []byte, status int, origin string) (*feed.Page, error) {
	if status != http.StatusOK {
		return nil, problem(body, status)
	}
	f, err := parseFeed(body)
	if err != nil {
		return nil, err
	}
	for i := range f.Changes {
		if f.Changes[i].Origin != origin {
			return nil, fmt.Errorf("a change has the origin %q instead of %q", f.Changes[i].Origin, origin)
		}
	}
	return f, nil
}

func problem(body []byte, status int) error {
	var p struct{ Title, Detail string }
	_ = json.Unmarshal(body, &p)
	return fmt.Errorf("status %d %s: %s", status, p.Title, p.Detail)
}

// keep imports changes, and keeps the cursor after them in the same transaction, unless notes are to be settled first.
func (p *Puller) keep(ctx context.Context, s *state, changes []ledger.FeedChange, next record) (notes []ledger.Note, err error) {
	ctx, cancel := context.WithTimeout(ctx, pullTime)
	defer cancel()
	done, err := p.opts.Feed.Import(ctx, changes, func(tx store.Tx, done ledger.Imported) error {
		if len(done.Notes) > 0 {
			return nil
		}
		r, err := get(tx, s.peer.Name)
		if err != nil {
			return err
		}
		next.Holder, next.Until, next.CaughtUp = r.Holder, r.Until, r.CaughtUp
		s.noteLedger(&next, tx.Now().UnixMilli())
		s.mu.Lock()
		next.Error = s.lacks()
		s.mu.Unlock()
		if next.Cursor != "" && next.Sequence >= next.Head {
			next.CaughtUp = tx.Now().UnixMilli()
		}
		return next.put(tx, s.peer.Name)
	})
	p.noteRefused(s, done)
	if err != nil {
		return nil, fmt.Errorf("changes cannot be imported: %w", err)
	}
	if len(done.Notes) == 0 {
		s.mu.Lock()
		s.record, s.noted = next, time.Now()
		s.mu.Unlock()
	}
	return done.Notes, nil
}

// settle asks the peer once more for the outcomes that notes deferred. The notes were here before these calls, so what
// the peer holds now is newer. done.Deferred is what stays deferred.
func (p *Puller) settle(ctx context.Context, s *state, notes []ledger.Note) (done ledger.Imported, err error) {
	asked := make(map[uint64]bool)
	for _, n := range notes {
		at := n.HLC >> 16 // milliseconds
		if asked[at] {
			continue
		}
		asked[at] = true
		err := p.span(ctx, s, s.peer.Name, int64(at), int64(at)+1, func(changes []ledger.FeedChange) error {
			d, err := p.opts.Feed.Settle(ctx, notes, changes)
			done.New += d.New
			done.Deferred += d.Deferred
			return err
		})
		if err != nil {
			return done, err
		}
	}
	return done, nil
}
