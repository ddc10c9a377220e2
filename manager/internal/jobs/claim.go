package jobs

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

func (q *Queue) prepareClaim(c ClaimRequest) (ClaimRequest, error) {
	if c.Limit == 0 {
		c.Limit = 1
	}
	if c.Lease == 0 {
		c.Lease = q.opt.Lease
	}
	err := cmp.Or(
		checkVisible("worker", c.Worker, 1, MaxNameBytes),
		checkFunctions(c.Functions),
		checkRange("limit", c.Limit, 1, MaxLimit),
		checkDuration("lease_ms", c.Lease, MinLease, MaxLease),
		checkDuration("wait_ms", c.Wait, 0, MaxWait),
	)
	c.Functions = slices.Clone(c.Functions)
	slices.Sort(c.Functions)
	c.Functions = slices.Compact(c.Functions)
	return c, err
}

// Claim leases up to Limit queued jobs to a worker: the highest priority first. Within a priority the functions that
// it names take turns, and within a function the earliest run_at is first. If it names none, the earliest run_at of all
// functions is first. If there are no jobs within Wait, it returns none and no error. It returns fewer than Limit if
// there are no more, or if their payloads exceed MaxClaimBytes.
//
// When ctx ends, jobs that were leased to the call are put back. If that fails too, they come back when their lease
// runs out.
func (q *Queue) Claim(ctx context.Context, c ClaimRequest) ([]Job, error) {
	c, err := q.prepareClaim(c)
	if err != nil {
		return nil, err
	}
	if c.Wait == 0 {
		return q.claims.do(ctx, c)
	}
	leave, err := q.enterWait()
	if err != nil {
		return nil, err
	}
	defer leave()
	deadline := time.Now().Add(c.Wait)
	place := q.idle.enter(c.Functions) // before the first search, so that no wake-up is missed
	var jobs []Job
	defer func() { q.idle.leave(place, len(jobs) > 0) }()
	for {
		var err error
		jobs, err = q.claims.do(ctx, c)
		left := time.Until(deadline)
		if err != nil || len(jobs) > 0 || left <= 0 {
			return jobs, err
		}
		if err := q.idle.wait(ctx, place, left); err != nil {
			if errors.Is(err, errDrained) {
				err = nil
			}
			return nil, err
		}
	}
}

// What aborts a claiming transaction, to be run again.
var (
	// errDutiesFirst: a job is due.
	errDutiesFirst = errors.New("jobs: duties first")
	// errSettingsChanged: the transaction searched where functions are paused or limited now. An engine may hide what it
	// found from the transaction's other searches.
	errSettingsChanged = errors.New("jobs: settings of functions have changed")
)

// claimHow is how to run a claiming transaction.
type claimHow struct {
	skipDuties bool // do not return errDutiesFirst
	guess      bool // search before the settings are known; may return errSettingsChanged
	turn       float64
}

// claimRun is the state of one run of a claiming transaction.
type claimRun struct {
	q        *Queue
	tx       store.Tx
	at       time.Time
	token    func() string
	turn     float64 // from 0 to 1: which function of a claim begins its turns
	named    bool    // the claims that are served name functions
	budget   int     // bytes left for this batch's answers
	settings settings
	quotas   map[string]*quota
	lines    map[string]*keyLine
	turns    int64 // keys that were served
	// unfinished: claims without a job must search again in another transaction.
	unfinished bool
	// ahead is the first group's lane if it was searched before the settings were known.
	ahead *lane
}

// maxSkipped bounds how many unreadable or expired jobs one search skips. The next search continues after them (see
// unread.Front). Jobs queued among them meanwhile are found a little later.
const maxSkipped = 2000

// claimTx serves a batch of claims in order of arrival. Claims for the same functions share one search.
//
// If any job is due, it returns errDutiesFirst. Besides its answers it changes only what the
// queue knows about due times, where a second run of the function does no harm.
func (q *Queue) claimTx(tx store.Tx, ops []*claimOp, how claimHow, token func() string) error {
	for _, op := range ops {
		op.jobs, op.size, op.again = nil, 0, false
	}
	var order []string
	groups := make(map[string][]*claimOp, 1)
	for _, op := range ops {
		id := strings.Join(op.req.Functions, "\x00")
		if groups[id] == nil {
			order = append(order, id)
		}
		groups[id] = append(groups[id], op)
	}
	c := &claimRun{q: q, tx: tx, token: token, turn: how.turn, budget: MaxAnswerBytes}
	if err := c.begin(groups[order[0]], how); err != nil {
		return err
	}
	for i, id := range order {
		group := groups[id]
		lanes := []*lane{c.ahead}
		if i > 0 || c.ahead == nil {
			var err error
			if lanes, err = c.claimLanes(group[0].req.Functions); err != nil {
				return err
			}
		}
		if err := c.serve(group, lanes); err != nil {
			return err
		}
	}
	return c.takeTokens()
}

// begin reads what all claims of a batch depend on: the settings, the time, and whether a job is due. Where the
// settings are likely to be as they were, it searches for the first group's jobs in the same round trip.
func (c *claimRun) begin(group []*claimOp, how claimHow) error {
	q := c.q
	if set, check, known := q.settings.guess(); known && how.guess {
		if c.ahead = onlyLane(group[0].req.Functions, set); c.ahead != nil {
			if err := c.ahead.search(c.tx, min(wanted(group), MaxLimit), check); err != nil {
				return err
			}
		}
	}
	var err error
	if c.settings, err = q.functionSettings(c.tx); err != nil && !q.opt.Unreadable.Met(err) { // a remote store returns the time with it
		return err
	}
	if c.ahead != nil && onlyLane(group[0].req.Functions, c.settings) == nil {
		return errSettingsChanged
	}
	c.at = now(c.tx)
	if how.skipDuties || !q.due.stale(c.at) {
		return nil
	}
	q.due.begin()
	next, err := q.nextDue(c.tx)
	if err != nil {
		return err
	}
	if !next.IsZero() && !next.After(c.at) {
		return errDutiesFirst
	}
	q.due.record(c.at, next)
	return nil
}

// wanted is how many jobs the claims of a group still lack.
func wanted(group []*claimOp) int {
	n := 0
	for _, op := range group {
		n += op.req.Limit - len(op.jobs)
	}
	return n
}

// serve fills the claims of a group from its lanes. When hits turn out to be stale it searches further.
func (c *claimRun) serve(group []*claimOp, lanes []*lane) error {
	more, skips := 0, maxSkipped+2*len(lanes)
	c.named = len(group[0].req.Functions) > 0
	for len(group) > 0 && len(lanes) > 0 {
		hits, err := c.candidates(lanes, min(max(wanted(group), more), MaxLimit))
		if err == nil && len(hits) == 0 && c.unfinished {
			searchAgain(group)
		}
		if err != nil || len(hits) == 0 {
			return err
		}
		if err := c.prefetch(hits, len(group)); err != nil {
			return err
		}
		unusable := 0
		for _, h := range hits {
			taken, err := c.lease(group[0], h)
			for errors.Is(err, errClaimFull) {
				if group = group[1:]; len(group) == 0 {
					return nil
				}
				taken, err = c.lease(group[0], h)
			}
			gone := errors.Is(err, errDangling) || errors.Is(err, errOver) || c.q.opt.Unreadable.Met(err)
			if err != nil && !gone {
				return err
			}
			if gone {
				unusable++
			}
			if h.lane.lead.See(h.Hit, taken); !taken {
				skips--
				if h.lane.key != nil {
					h.lane.key.pass()
				}
			}
			if c.budget <= 0 {
				searchAgain(group)
				return nil
			}
			if taken && len(group[0].jobs) == group[0].req.Limit {
				if group = group[1:]; len(group) == 0 {
					break
				}
			}
		}
		if unusable == 0 {
			continue
		}
		// Larger steps skip many of them faster.
		more = min(4*len(hits), MaxLimit)
		for _, l := range lanes {
			l.skipAhead(&c.q.front, skips <= 0)
		}
		if skips <= 0 {
			searchAgain(group)
			return nil
		}
	}
	return nil
}

// searchAgain lets the next batch serve the claims that have no job yet.
func searchAgain(group []*claimOp) {
	for _, op := range group {
		op.again = len(op.jobs) == 0
	}
}

// prefetch reads the values that the hits' jobs keep in other records, as far as the answers to so many claims have
// room. The scan has returned the jobs themselves.
func (c *claimRun) prefetch(hits []laneHit, claims int) error {
	var names []store.ID
	room := min(c.budget, claims*MaxClaimBytes)
	for _, h := range hits {
		b, err := c.tx.Get(colJobs, h.Key)
		if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrUnreadable) {
			return err
		}
		if err != nil || standsAlone(b) {
			room -= len(b)
			continue
		}
		r, err := decodeRecord(h.Key, b)
		if err != nil || r.State != Queued {
			continue
		}
		if room -= len(r.Payload) + r.PayloadBlob + len(r.Error); room < 0 {
			break
		}
		if r.PayloadBlob > 0 {
			names = append(names, store.ID{Collection: colBlobs, Key: payloadKey(r.ID)})
		}
		if r.LockID != "" && r.Dedup != nil && r.Dedup.Strategy == UntilExecuting {
			names = append(names, store.ID{Collection: colLocks, Key: r.LockID})
		}
	}
	return c.tx.Prefetch(names)
}

// errClaimFull says that a claim's answer has no room for the job.
var errClaimFull = errors.New("jobs: the claim is full")

var (
	// errDangling says that a hit's job does not exist.
	errDangling = errors.New("jobs: index entry without a job")
	// errOver says that the job has expired, and no duty has ended it yet.
	errOver = errors.New("jobs: the job has expired")
)

// lease leases the job of a hit to a claim, if it can still be claimed.
func (c *claimRun) lease(op *claimOp, h laneHit) (bool, error) {
	r, err := load(c.tx, h.Key)
	if err == nil && r == nil {
		err = errDangling
	}
	if err != nil || r.State != Queued {
		return false, err
	}
	if r.over(c.at) {
		return false, errOver
	}
	if len(op.req.Functions) > 0 {
		if _, ok := slices.BinarySearch(op.req.Functions, r.Function); !ok {
			return false, nil
		}
	}
	// The hit may be that of an earlier job with this id.
	if k := h.lane.key; k == nil && r.ConcurrencyKey != "" || k != nil && k.name != slotsKey(r.Function, r.ConcurrencyKey) {
		return false, nil
	}
	if h.lane.quota != nil && h.lane.quota.left == 0 || h.lane.key != nil && h.lane.key.may == 0 {
		return false, nil
	}
	// Error texts and inline values are written again with the claim.
	size := len(r.Payload) + r.PayloadBlob + len(r.Error) + len(r.Result) + 256
	switch {
	case op.size > 0 && op.size+size > MaxClaimBytes:
		return false, errClaimFull
	case c.budget < MaxAnswerBytes && size > c.budget:
		c.budget = 0
		return false, nil
	}
	if err := r.fetch(c.tx); err != nil {
		return false, err
	}
	c.budget, op.size = c.budget-size, op.size+size
	if r.LockID != "" && r.Dedup != nil && r.Dedup.Strategy == UntilExecuting {
		if err := r.freeLock(c.tx); err != nil {
			return false, err
		}
	}
	if h.lane.quota != nil {
		c.charge(r, h.lane)
	}
	// The job may have been queued after the transaction read the time.
	at, begun := latest(c.at, r.RunAt, r.FreedAt), leaseNow(c.tx)
	r.State = Active
	r.Attempt++
	r.StartedAt, r.FreedAt = at, time.Time{}
	r.LastToken = ""
	r.Lease = &Lease{Worker: op.req.Worker, Token: c.token(), Begun: begun, Until: begun.Add(op.req.Lease).Truncate(time.Microsecond),
		Duration: op.req.Lease, ExpiresIn: op.req.Lease}
	if r.Timeout > 0 {
		r.Lease.Deadline = begun.Add(r.Timeout).Truncate(time.Microsecond)
		r.Lease.extend(begun, op.req.Lease)
	}
	if err := r.save(c.tx); err != nil {
		return false, err
	}
	op.jobs = append(op.jobs, r.job())
	return true, nil
}
