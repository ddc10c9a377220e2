package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client"
)

// managerURL is the address of a manager, for example http://127.0.0.1:8090.
var managerURL = os.Getenv("ONCEGATE_EXAMPLES_URL")

// A submission with a key is carried out once, however often it is sent.
func Example() {
	ctx := context.Background()
	c, err := client.New(client.Options{URL: managerURL})
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
	// Output:
	// the same job: true
	// replayed: false true
}

// A worker claims jobs of its functions and reports their results.
func ExampleClient_NewWorker() {
	c, err := client.New(client.Options{URL: managerURL})
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
	// Output: complete 42
}

// work runs a worker until the returned function is called.
func work(c *client.Client, handlers map[string]client.Handler) (stop func()) {
	w, err := c.NewWorker(client.WorkerOptions{Handlers: handlers})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- w.Run(ctx) }()
	return func() {
		cancel()
		if err := <-stopped; err != nil {
			log.Fatal(err)
		}
	}
}

// A payload that cannot be read stays unreadable: Permanent ends the job at its first attempt.
func ExamplePermanent() {
	c, err := client.New(client.Options{URL: managerURL})
	if err != nil {
		log.Fatal(err)
	}
	stop := work(c, map[string]client.Handler{
		"invoice.print": func(_ context.Context, j *client.Job) (any, error) {
			var invoice struct{ Number int }
			if err := json.Unmarshal(j.Payload, &invoice); err != nil {
				return nil, client.Permanent(errors.New("no invoice"))
			}
			return nil, nil
		},
	})
	defer stop()

	j, err := c.WaitIdempotent(context.Background(), client.Submission{Function: "invoice.print", Payload: "hello", MaxAttempts: 5})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s after %d of %d attempts: %s\n", j.State, j.Attempt, j.MaxAttempts, j.Error)
	// Output: failed after 1 of 5 attempts: no invoice
}

// A handler may name the time of the next attempt, for example because another service asked for it.
func ExampleRetryAfter() {
	c, err := client.New(client.Options{URL: managerURL})
	if err != nil {
		log.Fatal(err)
	}
	stop := work(c, map[string]client.Handler{
		"order.ship": func(_ context.Context, j *client.Job) (any, error) {
			if j.Attempt == 1 {
				return nil, client.RetryAfter(errors.New("the depot is busy"), 10*time.Millisecond)
			}
			return "shipped", nil
		},
	})
	defer stop()

	j, err := c.WaitIdempotent(context.Background(), client.Submission{Function: "order.ship", MaxAttempts: 3})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(j.Result), "at attempt", j.Attempt)
	// Output: "shipped" at attempt 2
}

// Each submission of a batch has its own answer.
func ExampleClient_SubmitBatch() {
	c, err := client.New(client.Options{URL: managerURL})
	if err != nil {
		log.Fatal(err)
	}
	mails := []client.Submission{
		{Function: "mail.send", Payload: "to ann", ID: "mail-1"},
		{Function: "mail.send", Payload: "to bob", ID: "mail-2"},
	}
	answers, err := c.SubmitBatch(context.Background(), mails)
	if err != nil {
		log.Fatal(err) // to submit them again with the keys in answers finds out which are there
	}
	for _, a := range answers {
		if a.Err != nil {
			log.Fatal(a.Err)
		}
		fmt.Println(a.Job.ID, a.Job.State)
	}
	// Output:
	// mail-1 queued
	// mail-2 queued
}

// Errors of the manager have codes. This one says that a live job has the key of another submission.
func ExampleHasCode() {
	ctx := context.Background()
	c, err := client.New(client.Options{URL: managerURL})
	if err != nil {
		log.Fatal(err)
	}
	sync := client.Submission{Function: "stock.sync", Key: "warehouse-3"}
	_, err = c.SubmitIdempotent(ctx, sync)
	fmt.Println("first:", err)
	_, err = c.SubmitIdempotent(ctx, sync)
	fmt.Println("second has the code duplicate-key:", client.HasCode(err, api.CodeDuplicateKey))
	// Output:
	// first: <nil>
	// second has the code duplicate-key: true
}

// A job may begin later.
func ExampleSubmission() {
	c, err := client.New(client.Options{URL: managerURL})
	if err != nil {
		log.Fatal(err)
	}
	j, err := c.SubmitIdempotent(context.Background(), client.Submission{Function: "reminder.send", Delay: 24 * time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(j.State)
	fmt.Println("over:", j.Terminal())
	// Output:
	// scheduled
	// over: false
}

// A program that keeps its client id over restarts can recognize its submissions by their keys.
func ExampleOpenKeys() {
	dir, err := os.MkdirTemp("", "client-id")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "id")

	before, err := client.OpenKeys(file)
	if err != nil {
		log.Fatal(err)
	}
	after, err := client.OpenKeys(file) // the program starts again
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the same client:", after.ClientID() == before.ClientID())
	fmt.Println("the same key:", after.Next() == before.Next())
	// Output:
	// the same client: true
	// the same key: false
}

// A program without a worker claims, works and finishes itself.
func ExampleClient_Claim() {
	ctx := context.Background()
	c, err := client.New(client.Options{URL: managerURL})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := c.SubmitIdempotent(ctx, client.Submission{Function: "report.build", Payload: 2026}); err != nil {
		log.Fatal(err)
	}

	jobs, err := c.Claim(ctx, client.ClaimRequest{Worker: "reports-1", Functions: []string{"report.build"}, Lease: time.Minute, Wait: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	for _, j := range jobs {
		fmt.Println("report of", string(j.Payload))
		done, err := c.Finish(ctx, client.FinishRequest{
			ID: j.ID, LeaseToken: j.Lease.Token, Status: client.StateComplete, Result: json.RawMessage(`"12 pages"`),
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(done.State)
	}
	// Output:
	// report of 2026
	// complete
}

// A message with an id is in the log once, however often it is written.
func ExampleLog_OpenIdempotentWriter() {
	ctx := context.Background()
	c, err := client.New(client.Options{URL: managerURL})
	if err != nil {
		log.Fatal(err)
	}
	l, err := c.OpenLog("orders")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := l.Create(ctx, client.LogConfig{}); err != nil {
		log.Fatal(err)
	}
	w, err := l.OpenIdempotentWriter(ctx, client.WriterOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		r := w.Write(ctx, client.WriteMessage{IdempotencyID: "order-17", Payload: []byte("shipped")})
		if r.Err != nil {
			log.Fatal(r.Err)
		}
		fmt.Println("entry", r.LogMessageID.Entry, "duplicate", r.Duplicate)
	}
	if err := w.Close(ctx); err != nil {
		log.Fatal(err)
	}

	page, err := l.Read(ctx, client.LogQuery{})
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range page.Entries {
		fmt.Println(e.ID, string(e.Payload))
	}
	// Output:
	// entry 1 duplicate false
	// entry 1 duplicate true
	// order-17 shipped
}
