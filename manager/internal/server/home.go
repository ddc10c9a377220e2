package server

import (
	"context"
	"errors"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// Homes knows the home of each global key and makes calls there; see package home.
type Homes interface {
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
	// Call makes a call, in its raw form, at its home. The error is a httpd.Problemer.
	Call(ctx context.Context, home string, op api.Op, message []byte, wait time.Duration) (api.ReserveReply, error)
}

// Reach says which durabilities a ledger can give besides local.
type Reach struct {
	// Homes is for global; nil: the manager has no --origin.
	Homes Homes
	// Quorum: the engine can give region.
	Quorum bool
	// Engine is its name, for messages.
	Engine string
	// CacheFor bounds the time for which a gate answers from its cache, because another outcome may win a conflict. 0: an
	// outcome stays as it is.
	CacheFor time.Duration
}

// cacheable returns how long a gate may cache an outcome with this TTL; 0 for an outcome that the gate itself reports.
func (h *ledgerHandlers) cacheable(form httpd.Form, state api.State, lasts time.Duration) time.Duration {
	if h.reach.CacheFor == 0 || form != httpd.FormRaw || !state.Terminal() || h.admit != nil {
		return lasts
	}
	if lasts == 0 {
		return h.reach.CacheFor
	}
	return min(lasts, h.reach.CacheFor)
}

// untold returns how long an outcome lasts that a gate reports without a TTL, which therefore does not know it; else 0.
func (h *ledgerHandlers) untold(form httpd.Form, outcome api.State, asked time.Duration) time.Duration {
	if form != httpd.FormRaw || asked != 0 {
		return 0
	}
	return h.ledger.OutcomeTTL(outcome, 0)
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

// names lists the durabilities that the ledger can give.
func (r *Reach) names() []string {
	names := []string{"local"}
	for _, d := range []api.Durability{api.DurabilityRegion, api.DurabilityGlobal} {
		if r.check(d) == nil {
			names = append(names, d.String())
		}
	}
	return names
}

func durabilityProblem(detail string) error {
	return &httpd.Refusal{P: api.Problem{Status: 400, Code: api.CodeDurability, Title: "Durability unavailable", Detail: "durability: " + detail}}
}

// home returns the home of a key that is global, and whether that is another data centre.
func (h *ledgerHandlers) home(d api.Durability, scope, key string) (name string, elsewhere bool) {
	if d != api.DurabilityGlobal || h.reach.Homes == nil || h.admit != nil {
		return "", false
	}
	return h.reach.Homes.Home(scope, key)
}

// away is the ledger's error for a call about a global key of which it has no entry; nil: its answer counts.
func (h *ledgerHandlers) away(d api.Durability, scope, key string) *ledger.HomeError {
	if home, elsewhere := h.home(d, scope, key); elsewhere {
		return &ledger.HomeError{Home: home}
	}
	return h.refusal
}

// homeOf returns the home that an error of the ledger names.
func (h *ledgerHandlers) homeOf(err error) (name string, elsewhere bool) {
	var away *ledger.HomeError
	if err == nil || h.admit != nil || h.reach.Homes == nil || !errors.As(err, &away) {
		return "", false
	}
	return away.Home, true
}

// reserveFar reserves a key that is not only local.
func (h *ledgerHandlers) reserveFar(ctx context.Context, hold ledger.HoldFunc, req *api.ReserveRequest) (ledger.Reply, error) {
	if err := req.Validate(); err != nil {
		return ledger.Reply{}, err
	}
	if err := h.reach.check(req.Durability); err != nil {
		return ledger.Reply{}, err
	}
	home, elsewhere := h.home(req.Durability, req.Scope, req.Key)
	if elsewhere {
		if reply, ok, err := h.ledger.Recorded(ctx, req); ok || err != nil {
			return reply, err
		}
		return h.reserveAtHome(ctx, hold, req, home)
	}
	if home != "" || h.admit != nil {
		if err := h.reach.Homes.Take(); err != nil {
			if reply, ok, recorded := h.ledger.Recorded(ctx, req); ok || recorded != nil {
				return reply, recorded
			}
			return ledger.Reply{}, err
		}
	}
	return h.ledger.Reserve(ctx, req, hold)
}

// reserveAtHome reserves a key at its home, and records that this ledger's further calls about it go there.
func (h *ledgerHandlers) reserveAtHome(ctx context.Context, hold ledger.HoldFunc, req *api.ReserveRequest, home string) (ledger.Reply, error) {
	wait, done := h.reach.Homes.Wait(home, min(req.Wait, max(h.ledger.Options().MaxWait, 0)))
	defer done()
	by := *req
	by.Wait = wait
	calling := ctx
	if wait > 0 {
		held, stop := hold()
		defer stop()
		calling = held
	}
	reply, err := h.callHome(calling, home, api.OpReserve, &by)
	if err != nil || reply.State != api.StateReserved {
		return reply, err
	}
	if wait > 0 {
		// The wait may have used up the time of the call.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(calling), h.ledger.Options().OpTimeout)
		defer cancel()
	}
	by.Wait = 0
	return h.follow(ctx, req, home, reply, func() (ledger.Reply, error) { return h.callHome(ctx, home, api.OpReserve, &by) })
}

// follow records that the home has given its reservation to the caller, or renewed it. again makes the call once more.
func (h *ledgerHandlers) follow(ctx context.Context, req *api.ReserveRequest, home string, reply ledger.Reply, again func() (ledger.Reply, error)) (ledger.Reply, error) {
	var seen ledger.Seen
	for range 3 {
		err := h.ledger.Follow(ctx, req, home, seen)
		var overtaken *ledger.OvertakenError
		if !errors.As(err, &overtaken) {
			return reply, followed(home, err)
		}
		seen = overtaken.Seen
		if reply, err = again(); err != nil {
			var p httpd.Problemer
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
	return &httpd.Refusal{P: api.Problem{
		Status: 503, Code: api.CodeHomeUnanswered, Title: "Home unanswered", RetryAfterSeconds: httpd.RetrySoon,
		Detail: "the data centre " + home + " decides about this key and has made the call, which this manager could not record: " + err.Error() + "; repeat the call with the same token, or release it",
	}}
}

// callHome makes a reserve, renew or unknown at its home.
func (h *ledgerHandlers) callHome(ctx context.Context, home string, op api.Op, req *api.ReserveRequest) (ledger.Reply, error) {
	by := *req
	by.Durability = api.DurabilityLocal
	reply, err := h.reach.Homes.Call(ctx, home, op, by.AppendRaw(nil), by.Wait)
	if err != nil {
		return ledger.Reply{}, err
	}
	answer := ledger.Reply{State: reply.State, ExpiresIn: reply.ExpiresIn}
	if reply.State.Terminal() && reply.Result.Status != 0 {
		answer.Result = reply.Result.AppendRaw(nil)
	}
	return answer, nil
}

// renew makes the call here, or at the key's home.
func (h *ledgerHandlers) renew(ctx context.Context, req *api.ReserveRequest) (ledger.Reply, error) {
	reply, home, err := h.hereOrAway(ctx, api.OpRenew, req, ledger.Held.Renew)
	if err != nil || home == "" {
		return reply, err
	}
	return h.follow(ctx, req, home, reply, func() (ledger.Reply, error) { return h.callHome(ctx, home, api.OpRenew, req) })
}

// unknown makes the call here, or at the key's home. What this ledger has recorded runs out by itself.
func (h *ledgerHandlers) unknown(ctx context.Context, req *api.ReserveRequest) (ledger.Reply, error) {
	reply, _, err := h.hereOrAway(ctx, api.OpUnknown, req, ledger.Held.Unknown)
	return reply, err
}

// hereOrAway makes a call here or, if another data centre decides about the key, at that home, which it returns.
func (h *ledgerHandlers) hereOrAway(ctx context.Context, op api.Op, req *api.ReserveRequest,
	here func(ledger.Held, context.Context, *api.ReserveRequest) (ledger.Reply, error),
) (reply ledger.Reply, home string, err error) {
	reply, err = here(h.ledger.Held(h.away(req.Durability, req.Scope, req.Key)), ctx, req)
	home, elsewhere := h.homeOf(err)
	if !elsewhere {
		return reply, "", err
	}
	reply, err = h.callHome(ctx, home, op, req)
	return reply, home, err
}

// end makes a commit or a reject here, or at the key's home. The home's outcome comes here with its changes.
func (h *ledgerHandlers) end(ctx context.Context, req *ledger.FinishRequest, outcome api.State) error {
	op := api.OpCommit
	var err error
	req.Away = h.away(req.Durability, req.Scope, req.Key)
	if outcome == api.StateRejected {
		op, err = api.OpReject, h.ledger.Reject(ctx, req)
	} else {
		err = h.ledger.Commit(ctx, req)
	}
	home, elsewhere := h.homeOf(err)
	if !elsewhere {
		return err
	}
	in := api.FinishRequest{Key: req.Key, Scope: req.Scope, Token: req.Token, Fingerprint: req.Fingerprint, TTL: req.TTL}
	_, err = h.reach.Homes.Call(ctx, home, op, in.AppendRawWith(nil, req.Result), 0)
	return err
}

// free makes a release here, or at the key's home.
func (h *ledgerHandlers) free(ctx context.Context, req *api.ReleaseRequest) error {
	err := h.ledger.Held(h.away(req.Durability, req.Scope, req.Key)).Release(ctx, req)
	home, elsewhere := h.homeOf(err)
	if !elsewhere {
		return err
	}
	by := *req
	by.Durability = api.DurabilityLocal
	_, err = h.reach.Homes.Call(ctx, home, api.OpRelease, by.AppendRaw(nil), 0)
	var p httpd.Problemer
	if fenced := errors.As(err, &p) && p.Problem().Code == api.CodeFenced; err != nil && !fenced {
		return err
	}
	// The home no longer has the reservation. What is recorded of it here would keep another attempt's outcome out.
	if err := followed(home, h.ledger.ReleaseFollowed(ctx, req)); err != nil {
		return err
	}
	return err
}

// atHome makes a call of another data centre, if this one is the key's home.
func (h *ledgerHandlers) atHome(r *httpd.Request, w *httpd.Response) {
	op, ok := api.ParseOp(r.Param(0))
	q, err := r.QueryValues("home", "from", "of")
	switch {
	case err != nil:
	case !ok:
		err = &api.FieldError{Field: "call", Value: httpd.Clip(r.Param(0)), Allowed: "must be reserve, commit, reject, release, renew or unknown"}
	case h.reach.Homes == nil:
		err = &httpd.Refusal{P: api.Problem{
			Status: 421, Code: api.CodeWrongHome, Title: "Wrong home", Detail: "this manager has no --origin, so it is the home of no key; nothing was changed",
		}}
	}
	if err != nil {
		r.Error(w, err)
		return
	}
	at := *h
	at.admit = func(scope, key string) error {
		err := h.reach.Homes.Admit(q["from"], q["home"], q["of"], scope, key)
		if err != nil && op != api.OpReserve && q["home"] == h.reach.Homes.Origin() {
			// The list may have changed since this home gave the key. What began here ends here.
			home, _ := h.reach.Homes.Home(scope, key)
			at.refusal, err = &ledger.HomeError{Home: home, Refusal: err}, nil
		}
		return err
	}
	switch op {
	case api.OpReserve:
		at.reserve(r, w)
	case api.OpRenew:
		at.ask(r, w, at.renew)
	case api.OpUnknown:
		at.ask(r, w, at.unknown)
	case api.OpRelease:
		at.release(r, w)
	case api.OpReject:
		at.finish(r, w, api.StateRejected)
	default:
		at.finish(r, w, api.StateCommitted)
	}
}

// admitted returns an error if the call is another data centre's and this one is not the key's home.
func (h *ledgerHandlers) admitted(scope, key string) error {
	if h.admit == nil {
		return nil
	}
	return h.admit(scope, key)
}

// errAskAlone is the error of a call that is to be made by itself.
var errAskAlone = errors.New("server: another data centre decides about the key")

// leaveOut gives a call of a group errAskAlone, before the group is made, if another data centre decides about it, so that a slow
// home does not delay the other calls.
func (h *ledgerHandlers) leaveOut(it *ledger.Item) {
	if it.Err != nil {
		return
	}
	away := func(d api.Durability, scope, key string) (home string) {
		home, elsewhere := h.home(d, scope, key)
		if elsewhere {
			it.Err = errAskAlone
		}
		return home
	}
	switch it.Op {
	case ledger.OpRelease:
		away(it.Release.Durability, it.Release.Scope, it.Release.Key)
	case ledger.OpCommit, ledger.OpReject:
		it.Finish.Away = h.away(it.Finish.Durability, it.Finish.Scope, it.Finish.Key)
	case ledger.OpRenew, ledger.OpUnknown:
		away(it.Reserve.Durability, it.Reserve.Scope, it.Reserve.Key)
	case ledger.OpReserve:
		if it.Err = h.reach.check(it.Reserve.Durability); it.Err != nil {
			return
		}
		if home := away(it.Reserve.Durability, it.Reserve.Scope, it.Reserve.Key); home != "" && it.Err == nil && h.reach.Homes.Take() != nil {
			it.Err = errAskAlone // which may find an outcome
		}
	}
}
