package jobs

import (
	"math"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

// quota is how many jobs of a function a claiming transaction may still deliver.
type quota struct {
	setting *setting
	left    int
	tokens  int // that were taken
}

// quotaOf returns the quota of a function, the same one for the whole transaction.
func (c *claimRun) quotaOf(s *setting) (*quota, error) {
	if b := c.quotas[s.name]; b != nil {
		return b, nil
	}
	b := &quota{setting: s, left: math.MaxInt}
	rated := s.limits.Rate.Count > 0
	if s.limits.MaxRunning > 0 || rated {
		f, err := loadFunctionSlots(c.tx, s.name)
		if err != nil {
			return nil, err
		}
		if s.limits.MaxRunning > 0 {
			b.left = max(s.limits.MaxRunning-f.running, 0)
		}
		if rated {
			if at := c.tx.Now().UnixNano(); f.empty > at { // the store's clock was set back
				f.empty = at
				if err := f.save(c.tx, s.name); err != nil {
					return nil, err
				}
			}
			n, wait := f.tokens(s.limits.Rate, c.tx.Now())
			if b.left = min(b.left, n); n == 0 {
				c.q.idle.wakeIn(s.name, wait)
			}
		}
	}
	if c.quotas == nil {
		c.quotas = make(map[string]*quota)
	}
	c.quotas[s.name] = b
	return b, nil
}

// charge counts a job that is delivered.
func (c *claimRun) charge(r *record, from *lane) {
	b := from.quota
	l := &b.setting.limits
	b.left--
	b.tokens++
	r.slots = 0
	if l.MaxRunning > 0 {
		r.slots |= slotFunction
	}
	if from.key == nil {
		return
	}
	if l.MaxRunningPerKey > 0 {
		r.slots |= slotKey
	}
	from.key.may--
	c.turns++
	r.keyLimit, r.turn = l.MaxRunningPerKey, leaseNow(c.tx).UnixMicro()+c.turns
}

// takeTokens takes the tokens of the jobs that were delivered, and wakes claims when there are new ones.
func (c *claimRun) takeTokens() error {
	for function, b := range c.quotas {
		rate := b.setting.limits.Rate
		if rate.Count == 0 || b.tokens == 0 {
			continue
		}
		f, err := loadFunctionSlots(c.tx, function)
		if err != nil {
			return err
		}
		f.take(rate, b.tokens, c.tx.Now())
		if err := f.save(c.tx, function); err != nil {
			return err
		}
		if n, wait := f.tokens(rate, c.tx.Now()); n == 0 {
			c.q.idle.wakeIn(function, wait)
		}
	}
	return nil
}

// keyLine has the concurrency keys of a function that have work, in the order of their turns, as far as a transaction has
// looked. A key gives one job and goes to the end of the line, after the keys that were not read yet.
type keyLine struct {
	c     *claimRun
	quota *quota
	keys  []*lineKey
	again []*lineKey // those that have given a job, for the next round
	all   []*lineKey // those that were in the line, too
	after *store.Hit // the last key that was read
	ended bool       // there are no keys after it
	ready []laneHit  // of which a search has told already
	moved int        // keys that were found to be blocked
}

// lineKey is a key in a line, with the lane of its jobs.
type lineKey struct {
	lane
	name string // in colSlots
	may  int    // jobs of the key that may still be delivered
	left int    // jobs that the line may still return
	step int    // by how much left grew last
	line *keyLine
	jobs []laneHit
	met  bool // it had jobs
}

func (c *claimRun) keyedLane(s *setting, b *quota) *lane {
	l := c.lines[s.name]
	if l == nil {
		if c.lines == nil {
			c.lines = make(map[string]*keyLine)
		}
		l = &keyLine{c: c, quota: b}
		c.lines[s.name] = l
	}
	return &lane{quota: b, line: l}
}

// next returns the next jobs of the line, at most limit. claim says that the caller takes them. Otherwise the next call
// returns them again.
func (l *keyLine) next(limit int, claim bool) ([]laneHit, error) {
	for len(l.ready) < limit {
		if len(l.keys) == 0 {
			more, err := l.read(limit - len(l.ready))
			if err != nil {
				return nil, err
			}
			if !more {
				if len(l.again) == 0 {
					break
				}
				l.keys, l.again = l.again, nil
			}
			continue
		}
		k := l.keys[0]
		l.keys = l.keys[1:]
		if len(k.jobs) == 0 {
			if err := l.search(k, limit-len(l.ready)); err != nil {
				return nil, err
			}
		}
		if len(k.jobs) == 0 {
			continue
		}
		l.ready, k.jobs = append(l.ready, k.jobs[0]), k.jobs[1:]
		if k.left--; k.left > 0 {
			l.again = append(l.again, k)
		}
	}
	hits := l.ready[:min(limit, len(l.ready))]
	if claim {
		l.ready = l.ready[len(hits):]
	}
	return hits, nil
}

// maxLineKeys bounds the keys, or jobs of a key, that one search of a line reads.
const maxLineKeys = 256

// read adds the next keys to the line, up to as many as jobs are wanted. more is false if there are none.
func (l *keyLine) read(wanted int) (more bool, err error) {
	if l.ended {
		return false, nil
	}
	c, s := l.c, l.quota.setting
	limit := min(wanted, maxLineKeys)
	hits, err := c.tx.Scan(colSlots, idxReady, store.Range{From: s.name + "\x00", To: afterFunction(s.name), After: l.after, Limit: limit, Claim: true})
	if err != nil {
		return false, err
	}
	if l.ended = len(hits) < limit; len(hits) == 0 {
		return false, nil
	}
	l.after = &hits[len(hits)-1]
	for _, h := range hits {
		k, err := loadKeySlots(c.tx, h.Key)
		if err != nil && !c.q.opt.Unreadable.Met(err) {
			return false, err
		}
		if err != nil || k.waiting == 0 {
			continue
		}
		most := s.limits.MaxRunningPerKey
		changed := k.limit != most
		if k.limit = most; k.full() {
			if !changed {
				continue
			}
			if err := k.save(c.tx, h.Key); err != nil {
				return false, err
			}
			if l.moved++; l.moved == dutyBatch { // the next transaction continues
				l.ended, c.unfinished = true, true
				break
			}
			continue
		}
		left := k.waiting
		if most > 0 {
			left = min(left, most-k.running)
		}
		from := h.Key + "\x00"
		one := &lineKey{lane: lane{index: idxKeyed, from: from, to: h.Key + "\x01", skip: len(from), quota: l.quota}, name: h.Key, may: left, left: left, line: l}
		one.key = one
		l.keys, l.all = append(l.keys, one), append(l.all, one)
	}
	return true, nil
}

// search reads the next jobs of a key, as many as it is likely to give.
func (l *keyLine) search(k *lineKey, wanted int) error {
	keys := 1 + len(l.keys) + len(l.again)
	limit := min(k.left, max((wanted+keys-1)/keys, k.step))
	hits, err := l.c.tx.Scan(colJobs, k.index, store.Range{From: k.from, To: k.to, After: k.after, Limit: limit, Claim: true})
	if err != nil {
		return err
	}
	if len(hits) == 0 {
		if k.met {
			return nil
		}
		// A claiming search passes by jobs that others claim. If there are none at all, those that are counted were deleted
		// because they could not be read.
		if hits, err = l.c.tx.Scan(colJobs, k.index, store.Range{From: k.from, To: k.to, Limit: 1}); err != nil || len(hits) > 0 {
			return err
		}
		return recountKey(l.c.tx, k.name)
	}
	k.met, k.after = true, &hits[len(hits)-1]
	for _, h := range hits {
		k.jobs = append(k.jobs, laneHit{h, &k.lane})
	}
	return nil
}

// pass lets the line return other jobs of the key in place of one that cannot be delivered. Larger steps pass many of them
// faster.
func (k *lineKey) pass() {
	if k.may == 0 {
		return
	}
	k.step = min(4*max(k.step, 1), maxLineKeys)
	if k.left == 0 { // the line has removed it
		k.line.keys = append(k.line.keys, k)
	}
	k.left += k.step
}

func (l *keyLine) skipAhead(f *unread.Front, give bool) {
	for _, k := range l.all {
		k.skipAhead(f, give)
	}
}

// tokenTimer wakes claims when a function gets a token of its rate.
type tokenTimer struct {
	*time.Timer
	at time.Time
}

// wakeIn wakes a claim that waits for jobs of the function after d, or earlier if an earlier call says so.
func (c *idleClaims) wakeIn(function string, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := time.Now().Add(d)
	switch t := c.timers[function]; {
	case c.timers == nil:
		return
	case t != nil:
		if at.Before(t.at) {
			t.at = at
			t.Reset(d)
		}
		return
	}
	c.timers[function] = &tokenTimer{at: at, Timer: time.AfterFunc(d, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.timers, function)
		for _, topic := range []string{topicFunction + function, topicAny} {
			if l := c.lines[topic]; l != nil {
				l.wakeNext(topic)
			}
		}
	})}
}

// stopTimers stops what wakeIn has started.
func (c *idleClaims) stopTimers() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.timers {
		t.Stop()
	}
	c.timers = nil
}
