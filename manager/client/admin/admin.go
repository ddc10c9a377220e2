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

// remove makes a call whose answer says nothing.
func (c *Client) remove(ctx context.Context, path string) error {
	_, err := wire.Do(ctx, c.client, wire.Call{Method: "DELETE", Path: path}, nil)
	return err
}

// job makes a call whose answer is a job.
func (c *Client) job(ctx context.Context, call wire.Call) (*client.Job, error) {
	complete := func(j *client.Job) bool { return j.ID != "" && j.State != "" }
	return wire.AskReplayed(ctx, c.client, call, "no job", complete, func(j *client.Job) *bool { return &j.Replayed })
}
