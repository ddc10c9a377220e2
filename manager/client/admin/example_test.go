package admin_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
)

// managerURL is the address of a manager, for example http://127.0.0.1:8090.
var managerURL = os.Getenv("ONCEGATE_EXAMPLES_URL")

// The jobs of a paused function wait.
func ExampleClient_Pause() {
	ctx := context.Background()
	c, err := client.New(client.Options{URL: managerURL})
	if err != nil {
		log.Fatal(err)
	}
	a := admin.New(c)
	if _, err := c.SubmitIdempotent(ctx, client.Submission{Function: "sms.send"}); err != nil {
		log.Fatal(err)
	}
	if err := a.Pause(ctx, "sms.send"); err != nil {
		log.Fatal(err)
	}
	page, err := a.Functions(ctx, 0, "")
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range page.Functions {
		if f.Paused {
			fmt.Println(f.Name, "is paused,", f.Queued, "job waits")
		}
	}
	if err := a.Resume(ctx, "sms.send"); err != nil {
		log.Fatal(err)
	}
	// Output: sms.send is paused, 1 job waits
}

// Dead letters are jobs that failed for good. Once the cause is mended, an operator enqueues them again.
func ExampleClient_Replay() {
	ctx := context.Background()
	c, err := client.New(client.Options{URL: managerURL})
	if err != nil {
		log.Fatal(err)
	}
	fail(ctx, c, "invoice.send", "the mail server is down")

	a := admin.New(c)
	page, err := a.DeadLetters(ctx, "invoice.send", 0, "")
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range page.DeadLetters {
		j, err := a.Replay(ctx, "invoice.send", l.ID)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s; now %s\n", l.Reason, j.State)
	}
	// Output: the mail server is down; now queued
}

// fail makes a dead letter.
func fail(ctx context.Context, c *client.Client, function, reason string) {
	if _, err := c.SubmitIdempotent(ctx, client.Submission{Function: function, MaxAttempts: 1}); err != nil {
		log.Fatal(err)
	}
	jobs, err := c.Claim(ctx, client.ClaimRequest{Worker: "w", Functions: []string{function}})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := c.Finish(ctx, client.FinishRequest{ID: jobs[0].ID, LeaseToken: jobs[0].Lease.Token, Status: client.StateFailed, Error: reason}); err != nil {
		log.Fatal(err)
	}
}

// An action with many jobs is first tried without a change.
func ExampleClient_Bulk() {
	ctx := context.Background()
	c, err := client.New(client.Options{URL: managerURL})
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		if _, err := c.SubmitIdempotent(ctx, client.Submission{Function: "newsletter.send"}); err != nil {
			log.Fatal(err)
		}
	}

	a := admin.New(c)
	cancel := admin.BulkRequest{Action: admin.Cancel, ListQuery: admin.ListQuery{Function: "newsletter.send", State: client.StateQueued}}
	for _, cancel.DryRun = range []bool{true, false} {
		res, err := a.Bulk(ctx, cancel)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("matched", res.Matched, "done", res.Done)
	}
	page, err := a.List(ctx, cancel.ListQuery)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("queued", len(page.Jobs))
	// Output:
	// matched 3 done 0
	// matched 3 done 3
	// queued 0
}
