package home

import (
	"context"
	"errors"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// Directory knows the home of each global key and makes calls there. Homes is one.
type Directory interface {
	// Home returns the name of the key's home, and whether that is another data centre.
	Home(scope, key string) (name string, elsewhere bool)
	// Origin is the name of this data centre.
	Origin() string
	// Take returns an error unless this data centre may be the home of a new key.
	Take() error
	// Admit returns an error unless this data centre is the home of the key that another one, from, means, and both have
	// the same list.
	Admit(from, meant, list, scope, key string) error
	// Wait returns for how long a call at a home may be held, and what must be called after it.
	Wait(home string, want time.Duration) (wait time.Duration, done func())
	// Call makes a call, in its raw form, at its home. The error knows how it is answered, as an *Error does.
	Call(ctx context.Context, home string, op api.Op, message []byte, wait time.Duration) (api.ReserveReply, error)
}

// Reach says which durabilities a ledger can give besides local.
type Reach struct {
	// Homes is for global; nil: the manager has no --origin.
	Homes Directory
	// Quorum: the engine can give region.
	Quorum bool
	// Engine is its name, for messages.
	Engine string
	// CacheFor bounds the time for which a gate answers from its cache, because another outcome may win a conflict. 0: an
	// outcome stays as it is.
	CacheFor time.Duration
}

// check returns an error unless the ledger can give this durability.
func (r *Reach) check(d api.Durability) error {
	allowed := "; must be local"
	switch {
	case d == api.DurabilityRegion && !r.Quorum:
		if r.Homes != nil {
			allowed += " or global"
		}
		return durabilityProblem(`"region": the engine ` + r.Engine + " does not keep what it acknowledges on several machines (etcd does, and postgres with --store-require-sync-standbys)" + allowed)
	case d == api.DurabilityGlobal && r.Homes == nil:
		if r.Quorum {
			allowed += " or region"
		}
		return durabilityProblem(`"global": this manager knows of no data centres (--origin, --peer)` + allowed)
	}
	return nil
}

func durabilityProblem(detail string) error {
	return &Error{p: api.Problem{Status: 400, Code: api.CodeDurability, Title: "Durability unavailable", Detail: "durability: " + detail}}
}

// Calls makes calls about keys where they are decided: at this data centre's ledger, or at the key's home. It is safe for
// concurrent use, except for what Visit returns.
type Calls struct {
	ledger *ledger.Ledger
	reach  Reach
	visit  *visit // nil: the callers are this data centre's own
}

// visit is a call that another data centre, from, makes here, because it means that this one is the key's home.
type visit struct {
	op                api.Op
	from, meant, list string
	// refusal, which Admit sets, answers the call if the ledger has nothing of its own of the key.
	refusal *ledger.HomeError
}

// NewCalls returns what makes the calls of this data centre's own callers.
func NewCalls(l *ledger.Ledger, reach Reach) *Calls { return &Calls{ledger: l, reach: reach} }

// Visit returns what makes one call of another data centre. from is its name, list is its list of data centres, and meant
// is the home that it means. Admit must be called first.
//
// Errors: *Error.
func (c *Calls) Visit(op api.Op, from, meant, list string) (*Calls, error) {
	if c.reach.Homes == nil {
		return nil, &Error{p: api.Problem{
			Status: 421, Code: api.CodeWrongHome, Title: "Wrong home", Detail: "this manager has no --origin, so it is the home of no key; nothing was changed",
		}}
	}
	return &Calls{ledger: c.ledger, reach: c.reach, visit: &visit{op: op, from: from, meant: meant, list: list}}, nil
}

// Admit returns an error if the call is another data centre's, and this one neither is the key's home nor may still hold
// the key.
func (c *Calls) Admit(scope, key string) error {
	v := c.visit
	if v == nil {
		return nil
	}
	err := c.reach.Homes.Admit(v.from, v.meant, v.list, scope, key)
	if err != nil && v.op != api.OpReserve && v.meant == c.reach.Homes.Origin() {
		// The list may have changed since this home gave the key. What began here ends here.
		home, _ := c.reach.Homes.Home(scope, key)
		v.refusal, err = &ledger.HomeError{Home: home, Refusal: err}, nil
	}
	return err
}

// Global reports whether there are global keys.
func (c *Calls) Global() bool { return c.reach.Homes != nil }

// CacheFor bounds the time for which the caller may answer from its cache; 0: an outcome stays as it is. Another data
// centre passes the time on that it gets, and bounds it itself.
func (c *Calls) CacheFor() time.Duration {
	if c.visit != nil {
		return 0
	}
	return c.reach.CacheFor
}

// Durabilities are the names of those that the ledger can give.
func (c *Calls) Durabilities() []string {
	names := []string{"local"}
	for _, d := range []api.Durability{api.DurabilityRegion, api.DurabilityGlobal} {
		if c.reach.check(d) == nil {
			names = append(names, d.String())
		}
	}
	return names
}

// home returns the home of a key that is global, and whether that is another data centre.
func (c *Calls) home(a ledger.Attempt) (name string, elsewhere bool) {
	if a.Durability != api.DurabilityGlobal || c.reach.Homes == nil || c.visit != nil {
		return "", false
	}
	return c.reach.Homes.Home(a.Scope, a.Key)
}

// away is the ledger's error for a call about a global key of which it has no entry; nil: its answer counts.
func (c *Calls) away(a ledger.Attempt) *ledger.HomeError {
	if home, elsewhere := c.home(a); elsewhere {
		return &ledger.HomeError{Home: home}
	}
	if c.visit != nil {
		return c.visit.refusal
	}
	return nil
}

// Elsewhere returns the home that an error of the ledger names, and whether the call is to be made there.
func (c *Calls) Elsewhere(err error) (name string, elsewhere bool) {
	var away *ledger.HomeError
	if err == nil || c.visit != nil || c.reach.Homes == nil || !errors.As(err, &away) {
		return "", false
	}
	return away.Home, true
}

// Reserve is ledger.Ledger.Reserve where the key is decided. Its other errors are *Error.
func (c *Calls) Reserve(ctx context.Context, req *api.ReserveRequest, hold ledger.HoldFunc) (ledger.Reply, error) {
	if req.Durability == api.DurabilityLocal && c.visit == nil {
		return c.ledger.Reserve(ctx, req, hold)
	}
	if err := req.Validate(); err != nil {
		return ledger.Reply{}, err
	}
	if err := c.reach.check(req.Durability); err != nil {
		return ledger.Reply{}, err
	}
	home, elsewhere := c.home(ledger.Attempt{Scope: req.Scope, Key: req.Key, Durability: req.Durability})
	if elsewhere {
		if reply, ok, err := c.ledger.Recorded(ctx, req); ok || err != nil {
			return reply, err
		}
		return c.reserveAtHome(ctx, hold, req, home)
	}
	if home != "" || c.visit != nil {
		if err := c.reach.Homes.Take(); err != nil {
			if reply, ok, recorded := c.ledger.Recorded(ctx, req); ok || recorded != nil {
				return reply, recorded
			}
			return ledger.Reply{}, err
		}
	}
	return c.ledger.Reserve(ctx, req, hold)
}

// reserveAtHome reserves a key at its home, and records that this ledger's further calls about it go there.
func (c *Calls) reserveAtHome(ctx context.Context, hold ledger.HoldFunc, req *api.ReserveRequest, home string) (ledger.Reply, error) {
	wait, done := c.reach.Homes.Wait(home, min(req.Wait, max(c.ledger.Options().MaxWait, 0)))
	defer done()
	by := *req
	by.Wait = wait
	calling := ctx
	if wait > 0 {
		held, stop := hold()
		defer stop()
		calling = held
	}
	reply, err := c.callHome(calling, home, api.OpReserve, &by)
	if err != nil || reply.State != api.StateReserved {
		return reply, err
	}
	if wait > 0 {
		// The wait may have used up the time of the call.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(calling), c.ledger.Options().OpTimeout)
		defer cancel()
	}
	by.Wait = 0
	return c.follow(ctx, req, home, reply, func() (ledger.Reply, error) { return c.callHome(ctx, home, api.OpReserve, &by) })
}

// follow records that the home has given its reservation to the caller, or renewed it. again makes the call once more.
func (c *Calls) follow(ctx context.Context, req *api.ReserveRequest, home string, reply ledger.Reply, again func() (ledger.Reply, error)) (ledger.Reply, error) {
	var seen ledger.Seen
	for range 3 {
		err := c.ledger.Follow(ctx, req, home, seen)
		var overtaken *ledger.OvertakenError
		if !errors.As(err, &overtaken) {
			return reply, followed(home, err)
		}
		seen = overtaken.Seen
		if reply, err = again(); err != nil {
			var p problemer
			if errors.As(err, &p) && (p.Problem().Status == 409 || p.Problem().Status == 422) {
				return reply, err // the reservation is over: the key has another attempt or an outcome
			}
			return reply, followed(home, err) // the first call has changed something
		}
		if reply.State != api.StateReserved {
			return reply, nil
		}
	}
	return reply, followed(home, errors.New("outcomes of other attempts arrive one after the other"))
}

// followed is the answer to a call that the home has made, given the error of recording it here.
func followed(home string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{is: ErrUnanswered, p: api.Problem{
		Status: 503, Code: api.CodeHomeUnanswered, Title: "Home unanswered", RetryAfterSeconds: retrySoon,
		Detail: "the data centre " + home + " decides about this key and has made the call, which this manager could not record: " + err.Error() + "; repeat the call with the same token, or release it",
	}}
}

// problemer is an error that knows how it is answered.
type problemer interface {
	error
	Problem() api.Problem
}

// callHome makes a reserve, renew or unknown at its home.
func (c *Calls) callHome(ctx context.Context, home string, op api.Op, req *api.ReserveRequest) (ledger.Reply, error) {
	by := *req
	by.Durability = api.DurabilityLocal
	reply, err := c.reach.Homes.Call(ctx, home, op, by.AppendRaw(nil), by.Wait)
	if err != nil {
		return ledger.Reply{}, err
	}
	answer := ledger.Reply{State: reply.State, ExpiresIn: reply.ExpiresIn}
	if reply.State.Terminal() && reply.Result.Status != 0 {
		answer.Result = reply.Result.AppendRaw(nil)
	}
	return answer, nil
}

// Make makes a call by itself, without waiting, here or at the key's home.
func (c *Calls) Make(ctx context.Context, it *ledger.Item) {
	if it.Op == ledger.OpReserve {
		it.Reserve.Wait = 0
		it.Reply, it.Err = c.Reserve(ctx, &it.Reserve, nil)
		return
	}
	it.Away = c.away(it.Attempt())
	c.ledger.Make(ctx, it)
	if home, elsewhere := c.Elsewhere(it.Err); elsewhere {
		it.Reply, it.Err = c.makeAtHome(ctx, home, it)
	}
}

// makeAtHome makes a call that is no reserve at its home. An outcome of the home comes here with its changes, and what this
// ledger has recorded of an attempt that became unknown runs out by itself.
func (c *Calls) makeAtHome(ctx context.Context, home string, it *ledger.Item) (ledger.Reply, error) {
	switch it.Op {
	case ledger.OpRenew:
		again := func() (ledger.Reply, error) { return c.callHome(ctx, home, api.OpRenew, &it.Reserve) }
		reply, err := again()
		if err != nil {
			return reply, err
		}
		return c.follow(ctx, &it.Reserve, home, reply, again)
	case ledger.OpUnknown:
		return c.callHome(ctx, home, api.OpUnknown, &it.Reserve)
	case ledger.OpRelease:
		return ledger.Reply{State: api.StateReleased}, c.releaseAtHome(ctx, home, &it.Release)
	}
	op, state := api.OpCommit, api.StateCommitted
	if it.Op == ledger.OpReject {
		op, state = api.OpReject, api.StateRejected
	}
	f := &it.Finish
	in := api.FinishRequest{Key: f.Key, Scope: f.Scope, Token: f.Token, Fingerprint: f.Fingerprint, TTL: f.TTL}
	_, err := c.reach.Homes.Call(ctx, home, op, in.AppendRawWith(nil, f.Result), 0)
	return ledger.Reply{State: state}, err
}

func (c *Calls) releaseAtHome(ctx context.Context, home string, req *api.ReleaseRequest) error {
	by := *req
	by.Durability = api.DurabilityLocal
	_, err := c.reach.Homes.Call(ctx, home, api.OpRelease, by.AppendRaw(nil), 0)
	var p problemer
	if fenced := errors.As(err, &p) && p.Problem().Code == api.CodeFenced; err != nil && !fenced {
		return err
	}
	// The home no longer has the reservation. What is recorded of it here would keep another attempt's outcome out.
	if err := followed(home, c.ledger.ReleaseFollowed(ctx, req)); err != nil {
		return err
	}
	return err
}

// ErrAskAlone is the error of a call that is to be made by itself.
var ErrAskAlone = errors.New("home: another data centre decides about the key")

// LeaveOut gives a call of a group ErrAskAlone, before the group is made, if another data centre decides about it, so that a slow
// home does not delay the other calls.
func (c *Calls) LeaveOut(it *ledger.Item) {
	if it.Err != nil {
		return
	}
	if it.Op == ledger.OpReserve {
		if it.Err = c.reach.check(it.Reserve.Durability); it.Err != nil {
			return
		}
	}
	home, elsewhere := c.home(it.Attempt())
	switch it.Op {
	case ledger.OpCommit, ledger.OpReject:
		it.Away = c.away(it.Attempt())
		return
	case ledger.OpReserve: // a home that takes no new keys may still have an outcome
		elsewhere = elsewhere || home != "" && c.reach.Homes.Take() != nil
	}
	if elsewhere {
		it.Err = ErrAskAlone
	}
}
