// Package workertest tests that a worker's handler is idempotent, as at-least-once delivery requires.
package workertest

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/client"
)

// Runs is how often Idempotent runs the handler.
const Runs = 3

// Idempotent runs the handler Runs times with the same job, like a manager that never learns how the earlier runs
// ended: the same id and payload, with a growing attempt. The caller provides whatever the handler talks to.
//
// The test fails when a run returns an error or panics, or when after a later run check returns another state, or the
// handler another result, than after the first run. check reads what the handler has changed (rows, files, mails sent)
// and returns it. States are compared with reflect.DeepEqual. check must return a copy: it must not be changed by later
// runs. check may also fail the test itself.
func Idempotent[State any](t testing.TB, h client.Handler, payload any, check func(testing.TB) State) {
	t.Helper()
	encoded, err := json.Marshal(payload)
	if err != nil {
		t.Fatalf("workertest: the payload cannot be encoded: %v", err)
	}
	created := time.Now().UTC()
	var firstState State
	var firstResult string
	for run := 1; run <= Runs; run++ {
		// Each delivery is decoded separately: a handler must not rely on changes that it made to the job in memory.
		job := &client.Job{
			ID: "workertest-1", Function: "workertest", Payload: append(json.RawMessage(nil), encoded...), State: client.StateActive,
			Attempt: run, MaxAttempts: 25, CreatedAt: created, RunAt: created, StartedAt: time.Now().UTC(),
			Lease: &client.Lease{Worker: "workertest", Token: fmt.Sprint("workertest-", run), ExpiresIn: 30 * time.Second},
		}
		encodedResult, err := deliver(t.Context(), h, job)
		if err != nil {
			t.Fatalf("workertest: run %d of %d with the same job: %v", run, Runs, err)
		}
		state := check(t)
		if run == 1 {
			firstState, firstResult = state, string(encodedResult)
			continue
		}
		if !reflect.DeepEqual(firstState, state) {
			t.Fatalf("workertest: run %d changed the state that the first run left:\nfirst %+v\nnow   %+v", run, firstState, state)
		}
		if string(encodedResult) != firstResult {
			t.Fatalf("workertest: run %d returned %s, the first one %s", run, encodedResult, firstResult)
		}
	}
}

// deliver runs the handler and encodes its result as a worker does.
func deliver(ctx context.Context, h client.Handler, j *client.Job) (encoded []byte, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	result, err := h(ctx, j)
	if err != nil {
		return nil, fmt.Errorf("%v", err) // also of an error whose method panics
	}
	if encoded, err = json.Marshal(result); err != nil {
		return nil, fmt.Errorf("the result cannot be encoded: %w", err)
	}
	return encoded, nil
}
