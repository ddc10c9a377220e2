package clienttest

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"testing"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/managertest"
)

// withManager runs an example against a manager of its own. A program names the address of its manager instead, such as
// http://127.0.0.1:8090.
func withManager(example func(url string)) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	t := &exampleTB{ctx: ctx}
	defer func() {
		for i := len(t.cleanups) - 1; i >= 0; i-- {
			t.cleanups[i]()
		}
	}()
	example(managertest.Start(t, managertest.Options{}).URL)
}

// exampleTB is what managertest needs of a test.
type exampleTB struct {
	testing.TB
	ctx      context.Context
	cleanups []func()
}

func (t *exampleTB) Context() context.Context { return t.ctx }

func (t *exampleTB) TempDir() string {
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (t *exampleTB) Helper()           {}
func (t *exampleTB) Cleanup(fn func()) { t.cleanups = append(t.cleanups, fn) }
func (t *exampleTB) Fatal(args ...any) { log.Fatal(args...) }

// A submission with a key is carried out once, however often it is sent.
func Example() {
	withManager(func(url string) {
		ctx := context.Background()
		c, err := client.New(client.Options{URL: url})
		if err != nil {
			log.Fatal(err)
		}
		order := client.Submission{Function: "mail.send", Payload: "order 17 has shipped", IdempotencyKey: "order-17"}
		first, err := c.SubmitIdempotent(ctx, order)
		if err != nil {
			log.Fatal(err)
		}
		again, err := c.SubmitIdempotent(ctx, order)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("the same job:", again.ID == first.ID)
		fmt.Println("replayed:", first.Replayed, again.Replayed)
	})
	// Output:
	// the same job: true
	// replayed: false true
}

// A worker claims jobs of its functions and reports their results.
func ExampleClient_NewWorker() {
	withManager(func(url string) {
		c, err := client.New(client.Options{URL: url})
		if err != nil {
			log.Fatal(err)
		}
		w, err := c.NewWorker(client.WorkerOptions{Handlers: map[string]client.Handler{
			"math.double": func(_ context.Context, j *client.Job) (any, error) {
				var n int
				if err := json.Unmarshal(j.Payload, &n); err != nil {
					return nil, client.Permanent(err) // another attempt would fail as well
				}
				return 2 * n, nil
			},
		}})
		if err != nil {
			log.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		stopped := make(chan error, 1)
		go func() { stopped <- w.Run(ctx) }()

		j, err := c.WaitIdempotent(ctx, client.Submission{Function: "math.double", Payload: 21})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(j.State, string(j.Result))

		stop() // running handlers finish first
		if err := <-stopped; err != nil {
			log.Fatal(err)
		}
	})
	// Output: complete 42
}

// A handler continues the trace of the submission. Any library that reads W3C trace contexts will do.
func ExampleJob_Traceparent() {
	withManager(func(url string) {
		ctx := context.Background()
		c, err := client.New(client.Options{URL: url})
		if err != nil {
			log.Fatal(err)
		}
		_, err = c.SubmitIdempotent(ctx, client.Submission{
			Function: "mail.send", Traceparent: "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01",
		})
		if err != nil {
			log.Fatal(err)
		}
		jobs, err := c.Claim(ctx, client.ClaimRequest{Worker: "w"})
		if err != nil {
			log.Fatal(err)
		}
		carrier := propagation.MapCarrier{"traceparent": jobs[0].Traceparent}
		ctx = propagation.TraceContext{}.Extract(ctx, carrier)
		// A span that starts with ctx is now a child of the submission's.
		fmt.Println(trace.SpanContextFromContext(ctx).TraceID())
	})
	// Output: 0123456789abcdef0123456789abcdef
}

// A program can be its own gate: it reserves a key before the work and commits the answer after it.
func ExampleLedger_Batch() {
	withManager(func(url string) {
		c, err := client.New(client.Options{URL: url})
		if err != nil {
			log.Fatal(err)
		}
		call := func(b api.BatchCall) client.LedgerAnswer {
			answers, err := c.Ledger().Batch(context.Background(), []api.BatchCall{b})
			if err != nil {
				log.Fatal(err)
			}
			return answers[0]
		}
		reserve := func(token string) client.LedgerAnswer {
			return call(api.BatchCall{Op: api.OpReserve, Reserve: api.ReserveRequest{Key: "order-17", Token: token}})
		}

		fmt.Println("attempt 1:", reserve("attempt-1").Reply.State)
		fmt.Println("attempt 2:", reserve("attempt-2").Reply.State)
		call(api.BatchCall{Op: api.OpCommit, Finish: api.FinishRequest{
			Key: "order-17", Token: "attempt-1", Result: api.Result{Status: 201, Body: []byte("paid")},
		}})
		a := reserve("attempt-3")
		fmt.Println("attempt 3:", a.Reply.State, a.Reply.Result.Status, string(a.Reply.Result.Body))
	})
	// Output:
	// attempt 1: reserved
	// attempt 2: pending
	// attempt 3: committed 201 paid
}
