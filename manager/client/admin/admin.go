// Package admin has the calls of operators: it lists, cancels, retries and deletes jobs, pauses functions, replays dead
// letters, keeps schedules, reads and settles entries of the ledger, and shows what a manager knows of its data. A manager may require the
// rights of an operator or an administrator for them.
package admin

import (
	"context"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// Client makes operators' calls. It is safe for concurrent use.
type Client struct{ client *client.Client }

// New makes operators' calls with the connections, the token and the other options of a client. The calls are repeated as
// the client's are, unless they say otherwise.
func New(c *client.Client) *Client { return &Client{c} }

func (c *Client) do(ctx context.Context, call wire.Call, out any) (replayed bool, err error) {
	return wire.Do(ctx, c.client, call, out)
}

// job makes a call whose answer is a job.
func (c *Client) job(ctx context.Context, call wire.Call) (*client.Job, error) {
	var j client.Job
	var err error
	if j.Replayed, err = c.do(ctx, call, &j); err != nil {
		return nil, err
	}
	if j.ID == "" || j.State == "" {
		return nil, call.NotOurs("no job")
	}
	return &j, nil
}
