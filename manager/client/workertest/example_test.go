package workertest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/workertest"
)

// A handler that remembers the job's id does the work once. Idempotent delivers the same job three times and compares what
// check returns after each delivery.
func ExampleIdempotent() {
	t := exampleTB{} // in a test: its *testing.T

	paid := map[string]int{}
	pay := func(_ context.Context, j *client.Job) (any, error) {
		if _, done := paid[j.ID]; !done {
			paid[j.ID] = 100
		}
		return paid[j.ID], nil
	}
	workertest.Idempotent(t, pay, "order 17", func(testing.TB) map[string]int {
		state := map[string]int{}
		for id, amount := range paid {
			state[id] = amount
		}
		return state
	})
	fmt.Println("payments:", len(paid))
	// Output: payments: 1
}

type exampleTB struct{ testing.TB }

func (exampleTB) Helper()                           {}
func (exampleTB) Context() context.Context          { return context.Background() }
func (exampleTB) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
