package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"slices"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// Ledger makes the calls about keys, for programs that run work of their own once: reserve the key, run the work, commit
// its outcome. The same call with the same token is the same call, so all of them are repeated until they have an answer.
type Ledger struct{ client *Client }

// Ledger returns the calls about keys.
func (c *Client) Ledger() Ledger { return Ledger{c} }

// Reserve asks for the right to run a key's work. With an empty Token it draws one, which the reservation has. If the
// state is api.StateReserved the caller must run the work and end the reservation. An *Error with the code
// api.CodeOutcomeUnknown says that the work may have run, one with api.CodeFingerprintMismatch that the key was used for
// another request.
func (l Ledger) Reserve(ctx context.Context, r api.ReserveRequest) (token string, reply api.ReserveReply, err error) {
	if r.Token == "" {
		var b [16]byte
		_, _ = rand.Read(b[:]) // never fails: it ends the program instead
		r.Token = hex.EncodeToString(b[:])
	}
	reply, err = l.call(ctx, "reserve", schema.Append(nil, &r), r.Wait, api.StateReserved, api.StatePending, api.StateCommitted, api.StateRejected)
	return r.Token, reply, err
}

// Renew extends a reservation to its PendingTTL from now. An *Error with the code api.CodeFenced says that it is over.
func (l Ledger) Renew(ctx context.Context, r api.ReserveRequest) (api.ReserveReply, error) {
	return l.call(ctx, "renew", schema.Append(nil, &r), 0, api.StateReserved)
}

// Commit records the outcome of work that ran. An *Error with the code api.CodeFenced says that another attempt has the key.
func (l Ledger) Commit(ctx context.Context, r api.FinishRequest) error {
	_, err := l.call(ctx, "commit", schema.Append(nil, &r), 0, api.StateCommitted)
	return err
}

// Reject records the refusal of work that did not run.
func (l Ledger) Reject(ctx context.Context, r api.FinishRequest) error {
	_, err := l.call(ctx, "reject", schema.Append(nil, &r), 0, api.StateRejected)
	return err
}

// Release gives up a reservation whose work certainly did not run. The key is free again.
func (l Ledger) Release(ctx context.Context, r api.ReleaseRequest) error {
	_, err := l.call(ctx, "release", schema.Append(nil, &r), 0, api.StateReleased)
	return err
}

// call makes a call whose answer has one of the states.
func (l Ledger) call(ctx context.Context, name string, body []byte, wait time.Duration, states ...api.State) (reply api.ReserveReply, err error) {
	call := wire.Call{Method: "POST", Path: "/v1/ledger/" + name, Body: wire.Encoded(body), Wait: wait}
	var answer []byte
	if _, err := l.client.do(ctx, call, &answer); err != nil {
		return reply, err
	}
	var in schema.LedgerReply
	if err := schema.Unmarshal(answer, &in); err != nil {
		return reply, call.NotOurs(err.Error())
	}
	if !slices.Contains(states, in.State) {
		return reply, call.NotOurs("the state " + in.State.String())
	}
	return in.Reply(), nil
}
