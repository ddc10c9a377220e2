package cli

import (
	"context"
	"fmt"
)

func unreadableCommands() map[string]operatorCommand {
	return map[string]operatorCommand{
		"list":   {"", "list the records that the manager cannot read", 0, 0, (*operatorCall).pageFlags, unreadableList},
		"delete": {"COLLECTION RECORD", "delete such a record, as list names it; what it remembered is forgotten", 2, 2, nil, unreadableDelete},
	}
}

// unreadableMain is "oncegate unreadable".
func unreadableMain(ctx context.Context, env Environment, args []string) error {
	return operatorMain(ctx, env, "unreadable", unreadableCommands(), args)
}

func unreadableList(ctx context.Context, c *operatorCall) error {
	page, err := c.admin.Unreadable(ctx, c.limit, c.cursor)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(page)
	}
	rows := [][]string{{"COLLECTION", "KEY", "REASON", "RECORD"}}
	for _, r := range page.Records {
		rows = append(rows, []string{r.Collection, r.Key, r.Reason, r.ID})
	}
	return c.printTable(rows, page.Cursor)
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
