package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/managertest/calls"
)

var (
	ledgerScope       = strings.Repeat("s", 43)
	ledgerFingerprint = strings.Repeat("f", 43)
)

// reservation reserves a key.
func reservation(key string) calls.Call {
	return calls.Call{Op: api.OpReserve, Message: (&api.ReserveRequest{Key: key, Scope: ledgerScope, Token: key, Fingerprint: ledgerFingerprint}).AppendRaw(nil)}
}

// commitment commits an answer of 256 bytes for a key.
func commitment(key string) calls.Call {
	return calls.Call{Op: api.OpCommit, Message: (&api.FinishRequest{Key: key, Scope: ledgerScope, Token: key, Fingerprint: ledgerFingerprint, Result: api.Result{
		Status: 201, Headers: []api.Header{{Name: "content-type", Value: "application/json"}}, Body: []byte(answer256),
	}}).AppendRaw(nil)}
}

// managerKeys is the ledger of a manager. Each caller has a stream of its own, as the gate has, which ends with the program.
func managerKeys(ctx context.Context, addr string) keyStore {
	var streams [64]*calls.Stream
	return func(_ context.Context, caller int, keys []string, commit bool) (err error) {
		if streams[caller] == nil {
			if streams[caller], err = calls.Open(ctx, "http://"+addr); err != nil {
				return err
			}
		}
		all := make([]calls.Call, len(keys))
		for i, key := range keys {
			all[i] = reservation(key)
			if commit {
				all[i] = commitment(key)
			}
		}
		replies, err := streams[caller].Do(all...)
		for _, r := range replies {
			if r.Status > 299 {
				return fmt.Errorf("manager: a call got %d %s", r.Status, r.Body)
			}
		}
		return err
	}
}
