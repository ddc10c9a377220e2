package workertest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/workertest"
)

// account is what the handlers of these tests change.
type account struct {
	balance int
	seen    map[string]bool
}

// recorder is a testing.TB that notes a failure instead of being one.
type recorder struct {
	testing.TB
	failure string
}

func (r *recorder) Helper() {}
func (r *recorder) Fatalf(format string, args ...any) {
	r.failure = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// judge runs Idempotent and returns the failure, "" for none.
func judge(t *testing.T, h client.Handler, check func(testing.TB) int) string {
	t.Helper()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		workertest.Idempotent(r, h, map[string]int{"amount": 5}, check)
	}()
	<-done
	return r.failure
}

func TestIdempotentFindsWorkDoneTwice(t *testing.T) {
	amount := func(j *client.Job) int {
		var p struct{ Amount int }
		if err := json.Unmarshal(j.Payload, &p); err != nil {
			t.Error(err)
		}
		return p.Amount
	}
	for _, c := range []struct {
		name    string
		handler func(a *account) client.Handler
		want    string // part of the failure, "" for none
	}{
		{"remembers the job's id", func(a *account) client.Handler {
			return func(_ context.Context, j *client.Job) (any, error) {
				if !a.seen[j.ID] {
					a.seen[j.ID] = true
					a.balance += amount(j)
				}
				return a.balance, nil
			}
		}, ""},
		{"adds each time", func(a *account) client.Handler {
			return func(_ context.Context, j *client.Job) (any, error) {
				a.balance += amount(j)
				return nil, nil
			}
		}, "run 2 changed the state"},
		{"refuses the second time", func(a *account) client.Handler {
			return func(_ context.Context, j *client.Job) (any, error) {
				if a.seen[j.ID] {
					return nil, errors.New("done already")
				}
				a.seen[j.ID] = true
				return nil, nil
			}
		}, "run 2 of 3 with the same job: done already"},
		{"panics", func(*account) client.Handler {
			return func(context.Context, *client.Job) (any, error) { panic("oh") }
		}, "run 1 of 3 with the same job: panic: oh"},
		{"returns the attempt", func(*account) client.Handler {
			return func(_ context.Context, j *client.Job) (any, error) { return j.Attempt, nil }
		}, "run 2 returned 2, the first one 1"},
		{"goes wrong late", func(a *account) client.Handler {
			return func(_ context.Context, j *client.Job) (any, error) {
				if j.Attempt == workertest.Runs {
					a.balance++
				}
				return nil, nil
			}
		}, "run 3 changed the state"},
		{"leaves something in the payload", func(a *account) client.Handler {
			return func(_ context.Context, j *client.Job) (any, error) {
				a.balance = amount(j)
				copy(j.Payload, strings.Repeat(" ", len(j.Payload)))
				return nil, nil
			}
		}, ""},
		{"returns a result that panics", func(*account) client.Handler {
			return func(context.Context, *client.Job) (any, error) { return panicking{}, nil }
		}, "panic: no JSON"},
		{"returns what is no JSON", func(*account) client.Handler {
			return func(context.Context, *client.Job) (any, error) { return func() {}, nil }
		}, "cannot be encoded"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := &account{seen: map[string]bool{}}
			got := judge(t, c.handler(a), func(testing.TB) int { return a.balance })
			if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("failure %q, want %q", got, c.want)
			}
		})
	}
}

type panicking struct{}

func (panicking) MarshalJSON() ([]byte, error) { panic("no JSON") }

func TestPayloadMustBeJSON(t *testing.T) {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		workertest.Idempotent(r, nil, func() {}, func(testing.TB) int { return 0 })
	}()
	<-done
	if !strings.Contains(r.failure, "payload") {
		t.Errorf("failure %q", r.failure)
	}
}
