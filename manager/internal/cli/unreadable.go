package cli

import (
	"context"
	"fmt"

	"github.com/oncegate/oncegate/manager/client/admin"
)

func unreadableCommands() map[string]operatorCommand {
	return map[string]operatorCommand{
		"list":   {"", "list the records that the manager cannot read", 0, 0, (*operatorCall).pageFlags, unreadableList},
		"delete": {"COLLECTION RECORD", "delete such a record, as list names it; what it remembered is forgotten", 2, 2, nil, unreadableDelete},
	}
}

func unreadableList(ctx context.Context, c *operatorCall) error {
	page, err := c.admin.Unreadable(ctx, c.limit, c.cursor)
	if err != nil {
		return err
	}
	return printPage(c, page, page.Cursor, "COLLECTION, KEY, REASON, RECORD", page.Records, func(r *admin.UnreadableRecord) []string {
		return []string{r.Collection, r.Key, r.Reason, r.ID}
	})
}

func unreadableDelete(ctx context.Context, c *operatorCall) error {
	r, err := c.admin.DeleteUnreadable(ctx, c.args[0], c.args[1])
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(r)
	}
	fmt.Fprintf(c.out, "deleted from %s: %s, of which %s\n", r.Collection, printable(r.Key), printable(r.Reason))
	return nil
}
