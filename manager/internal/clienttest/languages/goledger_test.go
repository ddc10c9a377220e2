package languages

import (
	"context"
	"encoding/json"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client"
)

// startBatch starts a batch with the Go client.
func (d *goClient) startBatch(ctx context.Context, raw json.RawMessage) (any, error) {
	var a struct {
		Jobs        []goSubmission
		Callback    *goSubmission
		Idempotency string `json:"idempotency_key"`
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, err
	}
	b := client.Batch{IdempotencyKey: a.Idempotency}
	for i := range a.Jobs {
		b.Jobs = append(b.Jobs, a.Jobs[i].submission())
	}
	if a.Callback != nil {
		s := a.Callback.submission()
		b.Callback = &s
	}
	info, err := d.c.StartBatch(ctx, b)
	if err != nil {
		return nil, err
	}
	out := map[string]any{"replayed": info.Replayed}
	text, err := json.Marshal(info)
	if err != nil {
		return nil, err
	}
	return out, json.Unmarshal(text, &out)
}

// ledger makes a call about a key for the Go client.
func (d *goClient) ledger(ctx context.Context, op string, raw json.RawMessage) (any, error) {
	var a struct {
		Key, Scope, Fingerprint, Token string
		PendingTTL                     int64 `json:"pending_ttl_ms"`
		Wait                           int64 `json:"wait_ms"`
		TTL                            int64 `json:"ttl_ms"`
		Durability                     string
		Result                         struct {
			Status  int
			Headers [][2]string
			Body    string
			Omitted bool `json:"body_omitted"`
		}
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, err
	}
	durability, _ := api.ParseDurability(a.Durability) // local if empty
	l := d.c.Ledger()
	finish := api.FinishRequest{Key: a.Key, Scope: a.Scope, Token: a.Token, Fingerprint: a.Fingerprint, TTL: millis(a.TTL), Durability: durability,
		Result: api.Result{Status: a.Result.Status, Body: []byte(a.Result.Body), BodyOmitted: a.Result.Omitted}}
	for _, h := range a.Result.Headers {
		finish.Result.Headers = append(finish.Result.Headers, api.Header{Name: h[0], Value: h[1]})
	}
	state := func(s api.State, err error) (any, error) { return map[string]any{"state": s.String()}, err }
	switch op {
	case "commit":
		return state(api.StateCommitted, l.Commit(ctx, finish))
	case "reject":
		return state(api.StateRejected, l.Reject(ctx, finish))
	case "release":
		return state(api.StateReleased, l.Release(ctx, api.ReleaseRequest{Key: a.Key, Scope: a.Scope, Token: a.Token, Durability: durability}))
	}
	r := api.ReserveRequest{Key: a.Key, Scope: a.Scope, Fingerprint: a.Fingerprint, Token: a.Token, PendingTTL: millis(a.PendingTTL), Wait: millis(a.Wait), Durability: durability}
	var reply api.ReserveReply
	var err error
	if op == "renew" {
		reply, err = l.Renew(ctx, r)
	} else {
		r.Token, reply, err = l.Reserve(ctx, r)
	}
	out := map[string]any{"state": reply.State.String(), "token": r.Token, "expires_in_ms": reply.ExpiresIn.Milliseconds()}
	if reply.State.Terminal() {
		headers := make([][2]string, len(reply.Result.Headers))
		for i, h := range reply.Result.Headers {
			headers[i] = [2]string{h.Name, h.Value}
		}
		out["result"] = map[string]any{"status": reply.Result.Status, "headers": headers, "body": string(reply.Result.Body), "body_omitted": reply.Result.BodyOmitted}
	}
	return out, err
}
