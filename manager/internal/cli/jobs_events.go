package cli

import (
	"context"
	"flag"
	"fmt"
	"strconv"

	"github.com/oncegate/oncegate/manager/client"
)

func (c *operatorCall) sendFlags(fs *flag.FlagSet) {
	f := &c.submission
	fs.StringVar(&f.payloadFile, "payload-file", "", "`file` with the payload, - for standard input")
	fs.StringVar(&f.IdempotencyKey, "idempotency-key", "", "`key` of the call: the same event with it is sent once, however often the call is made (default: a new one)")
}

// jobsSend sends an event and prints its jobs.
func jobsSend(ctx context.Context, c *operatorCall) error {
	e := client.Event{Name: c.args[0], IdempotencyKey: c.submission.IdempotencyKey}
	payload, err := c.payload("send")
	if err != nil {
		return err
	}
	if payload != nil {
		e.Payload = payload
	}
	sent, err := c.client.SendIdempotent(ctx, e)
	if err != nil {
		return err
	}
	if len(sent.Jobs) == 0 && !c.json {
		fmt.Fprintf(c.out, "no function subscribes to %s\n", printable(e.Name))
		return nil
	}
	return printPage(c, sent, "", "ID, FUNCTION", sent.Jobs, func(j *client.EventJob) []string { return []string{j.ID, j.Function} })
}

func jobsEvents(ctx context.Context, c *operatorCall) error {
	page, err := c.admin.Events(ctx, c.limit, c.cursor)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(page)
	}
	rows := [][]string{{"EVENT", "FUNCTION", "SINCE"}}
	for _, e := range page.Events {
		for _, s := range e.Subscriptions {
			rows = append(rows, []string{e.Name, s.Function, stamp(s.Since)})
		}
	}
	return c.printTable(rows, page.Cursor)
}

func jobsBatches(ctx context.Context, c *operatorCall) error {
	page, err := c.admin.Batches(ctx, c.limit, c.cursor)
	if err != nil {
		return err
	}
	return printPage(c, page, page.Cursor, "BATCH, TOTAL, PENDING, COMPLETE, FAILED, CANCELLED, EXPIRED, CREATED, FINISHED, CALLBACK", page.Batches, func(b *client.BatchInfo) []string {
		row := []string{b.ID}
		for _, n := range []int{b.Total, b.Pending, b.Complete, b.Failed, b.Cancelled, b.Expired} {
			row = append(row, strconv.Itoa(n))
		}
		return append(row, stamp(b.CreatedAt), stamp(b.FinishedAt), b.Callback)
	})
}

// subscription is a command that begins or ends a subscription.
func subscription(now string, call func(c *client.Client, ctx context.Context, event, function string) error) func(context.Context, *operatorCall) error {
	return func(ctx context.Context, c *operatorCall) error {
		event, function := c.args[0], c.args[1]
		if err := call(c.client, ctx, event, function); err != nil || c.json {
			return err
		}
		fmt.Fprintf(c.out, "%s %s %s\n", printable(function), now, printable(event))
		return nil
	}
}
