package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/oncegate/oncegate/manager/client"
)

// What "oncegate jobs" and "oncegate ledger" print: tables for people, JSON for scripts.

func (c *operatorCall) printJSON(v any) error {
	e := json.NewEncoder(c.out)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

func (c *operatorCall) printTable(rows [][]string, cursor string) error {
	var table strings.Builder
	t := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = printable(cell)
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(table.String()) {
		if _, err := fmt.Fprintln(c.out, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	if cursor != "" {
		fmt.Fprintf(c.out, "more: --cursor %s\n", cursor)
	}
	return nil
}

// printPage prints a page of a list as a table, or as JSON. The names of the columns are in head, with commas between them.
// A row may end with empty cells that have no name there.
func printPage[T any](c *operatorCall, page any, cursor, head string, items []T, row func(*T) []string) error {
	if c.json {
		return c.printJSON(page)
	}
	rows := [][]string{strings.Split(head, ", ")}
	for i := range items {
		rows = append(rows, row(&items[i]))
	}
	return c.printTable(rows, cursor)
}

// printMembers prints v as JSON, or what lines calls line with: one member in each, and none for an empty value.
func (c *operatorCall) printMembers(v any, lines func(line func(name, value string))) error {
	if c.json {
		return c.printJSON(v)
	}
	t := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	lines(func(name, value string) {
		if value != "" {
			fmt.Fprintf(t, "%s\t%s\n", name, printable(value))
		}
	})
	return t.Flush()
}

// printJob shows what a job has, one member per line.
func (c *operatorCall) printJob(j *client.Job) error {
	return c.printMembers(j, func(line func(name, value string)) { jobLines(j, line) })
}

func jobLines(j *client.Job, line func(name, value string)) {
	line("id", j.ID)
	line("function", j.Function)
	state := string(j.State)
	if j.CancelRequested && !j.Terminal() {
		state += ", cancel requested"
	}
	if j.ReplayedAs != "" {
		state += " as " + j.ReplayedAs
	}
	switch {
	case j.Deduplicated:
		state += "; it stands for this submission, a duplicate"
	case j.Existing:
		state += "; it held the key already"
	case j.Replayed:
		state += ", as the first answer to this submission said"
	}
	line("state", state)
	line("attempt", fmt.Sprintf("%d of %d", j.Attempt, j.MaxAttempts))
	line("priority", strconv.Itoa(j.Priority))
	line("key", j.Key)
	line("concurrency key", j.ConcurrencyKey)
	if d := j.Dedup; d != nil {
		line("dedup", strings.TrimSpace(d.Strategy+" "+d.IfDeduplicated))
	}
	line("submitter", j.Submitter)
	line("created", stamp(j.CreatedAt))
	line("run at", stamp(j.RunAt))
	line("expires", stamp(j.ExpiresAt))
	if j.Timeout > 0 {
		line("timeout", j.Timeout.String())
	}
	line("started", stamp(j.StartedAt))
	line("finished", stamp(j.FinishedAt))
	if l := j.Lease; l != nil {
		line("worker", fmt.Sprintf("%s, lease for %s", l.Worker, l.ExpiresIn))
	}
	for _, db := range slices.Sorted(maps.Keys(j.WALLocations)) {
		line("wal "+printable(db), j.WALLocations[db])
	}
	line("error", j.Error)
	for _, e := range j.Errors[:max(0, len(j.Errors)-1)] { // the last one is in the line above
		line(fmt.Sprintf("attempt %d", e.Attempt), stamp(e.At)+" "+e.Worker+": "+e.Error)
	}
	line("traceparent", j.Traceparent)
	line("payload", string(j.Payload))
	line("result", string(j.Result))
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// firstLine keeps the first line of an error, at most 60 characters of it.
func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	if r := []rune(s); len(r) > 60 {
		s = string(r[:57]) + "..."
	}
	return s
}

// printable escapes what could move a terminal's cursor or break a table.
func printable(s string) string {
	for _, r := range s {
		if r != ' ' && !unicode.IsGraphic(r) || r == unicode.ReplacementChar {
			q := strconv.Quote(s)
			return q[1 : len(q)-1]
		}
	}
	return s
}

// count shows a number of jobs; atLeast: there may be more.
func count(n int, atLeast bool) string {
	if atLeast && n > 0 {
		return strconv.Itoa(n) + "+"
	}
	return strconv.Itoa(n)
}
