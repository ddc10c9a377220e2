package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sort"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/oncegate/oncegate/manager/client"
)

// jobsCommand is one word behind "manager jobs".
type jobsCommand struct {
	args, summary string
	// least and most bound the arguments; most -1 means any number.
	least, most int
	flags       func(*jobsCall, *flag.FlagSet)
	run         func(context.Context, *jobsCall) error
}

// jobsCall is one call of "manager jobs".
type jobsCall struct {
	client *client.Client
	out    io.Writer
	json   bool
	args   []string

	function, state, cursor string
	limit                   int
	wait, delay             time.Duration
	delayed                 bool
}

func jobsCommands() map[string]jobsCommand {
	return map[string]jobsCommand{
		"list":         {"", "list jobs, running ones first", 0, 0, (*jobsCall).listFlags, jobsList},
		"get":          {"ID", "show a job with its payload and result", 1, 1, (*jobsCall).waitFlag, jobsGet},
		"cancel":       {"ID...", "cancel jobs", 1, -1, nil, jobsCancel},
		"retry":        {"ID...", "run failed or cancelled jobs again", 1, -1, (*jobsCall).delayFlag, jobsRetry},
		"functions":    {"", "list functions and how many jobs they have", 0, 0, (*jobsCall).pageFlags, jobsFunctions},
		"pause":        {"FUNCTION...", "stop the delivery of functions' jobs", 1, -1, nil, jobsPause},
		"resume":       {"FUNCTION...", "let functions' jobs flow again", 1, -1, nil, jobsResume},
		"dead-letters": {"FUNCTION", "list a function's dead letters, oldest first", 1, 1, (*jobsCall).pageFlags, jobsDeadLetters},
		"replay":       {"FUNCTION ID...", "enqueue dead letters anew", 2, -1, nil, jobsReplay},
	}
}

const (
	managerURLEnv     = "ONCEGATE_MANAGER_URL"
	defaultManagerURL = "http://127.0.0.1:9000"
)

// jobsMain is "manager jobs": operators' calls to a running manager.
func jobsMain(ctx context.Context, env environment, args []string) error {
	all := jobsCommands()
	if len(args) == 0 {
		return usagef("a command is missing, see manager jobs --help")
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		jobsHelp(env.stdout, all)
		return nil
	}
	cmd, ok := all[args[0]]
	if !ok {
		return usagef("unknown command %q, see manager jobs --help", args[0])
	}
	call, err := parseJobsCall(env, args[0], cmd, args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := cmd.run(ctx, call); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return nil
}

func parseJobsCall(env environment, name string, cmd jobsCommand, args []string) (*jobsCall, error) {
	call := &jobsCall{out: env.stdout}
	fs := flag.NewFlagSet("jobs "+name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	url, tokenFile, timeout := defaultManagerURL, "", 15*time.Second
	if v, ok := env.getenv(managerURLEnv); ok && v != "" {
		url = v
	}
	fs.StringVar(&url, "manager", url, "`URL` of the manager ["+managerURLEnv+"]")
	fs.StringVar(&tokenFile, "token-file", "", "`file` whose first line is the bearer token")
	fs.Func("timeout-seconds", "what one call may take, 0.1 to 600 (default 15)", seconds("timeout-seconds", 0.1, 600, &timeout))
	fs.BoolVar(&call.json, "json", false, "print JSON, one value per line")
	if cmd.flags != nil {
		cmd.flags(call, fs)
	}
	// Flags may come before and after the arguments.
	for rest := args; ; {
		if err := fs.Parse(rest); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				fmt.Fprintf(env.stdout, "usage: manager jobs %s [flags] %s\n", name, cmd.args)
				fs.SetOutput(env.stdout)
				fs.PrintDefaults()
				return nil, err
			}
			return nil, usagef("%s: %s", name, strings.Replace(err.Error(), "invalid value", "value", 1))
		}
		if fs.NArg() == 0 {
			break
		}
		call.args = append(call.args, fs.Arg(0))
		rest = fs.Args()[1:]
	}
	if n := len(call.args); n < cmd.least || cmd.most >= 0 && n > cmd.most {
		return nil, usagef("%s: %d arguments: must be %q", name, n, strings.TrimSpace(name+" "+cmd.args))
	}
	token := ""
	if tokenFile != "" {
		b, err := os.ReadFile(tokenFile)
		if err != nil {
			return nil, usagef("--token-file: %v", err)
		}
		token, _, _ = strings.Cut(string(b), "\n")
		if token = strings.TrimSpace(token); token == "" {
			return nil, usagef("--token-file %s: the first line must be a token", tokenFile)
		}
	}
	var err error
	call.client, err = client.New(client.Options{URL: url, Token: token, Timeout: timeout, MaxAttempts: 3})
	if err != nil {
		return nil, usagef("--manager %q: must be http:// or https:// with a host, for example %s", url, defaultManagerURL)
	}
	return call, nil
}

func jobsHelp(w io.Writer, all map[string]jobsCommand) {
	fmt.Fprintln(w, "usage: manager jobs COMMAND [flags]; talks to the manager at --manager URL, "+managerURLEnv+", or "+defaultManagerURL)
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	sort.Strings(names)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, name := range names {
		fmt.Fprintf(t, "  %s %s\t%s\n", name, all[name].args, all[name].summary)
	}
	_ = t.Flush()
	fmt.Fprintln(w, "manager jobs COMMAND --help lists the flags of a command.")
}

func seconds(name string, least, most float64, to *time.Duration) func(string) error {
	return duration(name, "", "", least, most, "", to).parse
}

func (c *jobsCall) pageFlags(fs *flag.FlagSet) {
	fs.Func("limit", "entries on this page, 1 to 1000 (default 100)", number("limit", "", "", 1, 1000, "", &c.limit).parse)
	fs.StringVar(&c.cursor, "cursor", "", "`cursor` that the page before ended with")
}

func (c *jobsCall) listFlags(fs *flag.FlagSet) {
	c.pageFlags(fs)
	fs.StringVar(&c.function, "function", "", "only jobs of this `function`")
	states := []string{"scheduled", "queued", "active", "complete", "failed", "cancelled"}
	fs.Func("state", "only jobs in this `state`: "+strings.Join(states, ", "), choice("state", "", "", "", states, &c.state).parse)
}

func (c *jobsCall) waitFlag(fs *flag.FlagSet) {
	fs.Func("wait-seconds", "wait this long for the job's end, 0 to 86400", seconds("wait-seconds", 0, 86400, &c.wait))
}

func (c *jobsCall) delayFlag(fs *flag.FlagSet) {
	parse := seconds("delay-seconds", 0, maxSeconds, &c.delay)
	fs.Func("delay-seconds", "run them this much later, 0 to 31622400", func(v string) error {
		c.delayed = true
		return parse(v)
	})
}

func jobsList(ctx context.Context, c *jobsCall) error {
	page, err := c.client.List(ctx, client.ListQuery{Function: c.function, State: c.state, Limit: c.limit, Cursor: c.cursor})
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(page)
	}
	rows := [][]string{{"ID", "FUNCTION", "STATE", "PRIO", "ATTEMPT", "RUN AT", "KEY", "ERROR"}}
	for i := range page.Jobs {
		j := &page.Jobs[i]
		rows = append(rows, []string{
			j.ID, j.Function, j.State, strconv.Itoa(j.Priority), fmt.Sprintf("%d/%d", j.Attempt, j.MaxAttempts), stamp(j.RunAt), j.Key, firstLine(j.Error),
		})
	}
	return c.printTable(rows, page.Cursor)
}

func jobsGet(ctx context.Context, c *jobsCall) error {
	j, err := c.client.Get(ctx, c.args[0])
	if err == nil && c.wait > 0 && !j.Terminal() {
		waitCtx, cancel := context.WithTimeout(ctx, c.wait)
		done, waitErr := c.client.Wait(waitCtx, c.args[0])
		cancel()
		switch {
		case waitErr == nil:
			j = done
		case ctx.Err() != nil || !errors.Is(waitErr, context.DeadlineExceeded):
			return waitErr
		default: // not over in time: as it is now
			j, err = c.client.Get(ctx, c.args[0])
		}
	}
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(j)
	}
	return c.printJob(j)
}

// each makes a call for every argument and goes on after a refusal, so that one
// does not hide what became of the others.
func (c *jobsCall) each(args []string, one func(string) (*client.Job, error)) error {
	rows := [][]string{{"ID", "FUNCTION", "STATE", "RUN AT"}}
	var failed []error
	for _, arg := range args {
		j, err := one(arg)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		if c.json {
			if err := c.printJSON(j); err != nil {
				return err
			}
		}
		state := j.State
		if j.CancelRequested && state == "active" {
			state = "active, cancel requested"
		}
		if j.Deduplicated {
			state += ", waiting already; the dead letter stays"
		}
		rows = append(rows, []string{j.ID, j.Function, state, stamp(j.RunAt)})
	}
	if !c.json && len(rows) > 1 {
		if err := c.printTable(rows, ""); err != nil {
			return err
		}
	}
	if len(failed) == 0 {
		return nil
	}
	if rest := len(failed) - 1; rest > 0 {
		return fmt.Errorf("%w (and %d more of %d failed)", failed[0], rest, len(args))
	}
	return failed[0]
}

func jobsCancel(ctx context.Context, c *jobsCall) error {
	return c.each(c.args, func(id string) (*client.Job, error) { return c.client.Cancel(ctx, id) })
}

func jobsRetry(ctx context.Context, c *jobsCall) error {
	return c.each(c.args, func(id string) (*client.Job, error) {
		var r client.RetryRequest
		if c.delayed {
			ms := c.delay.Milliseconds()
			r.DelayMS = &ms
		}
		return c.client.Retry(ctx, id, r)
	})
}

func jobsReplay(ctx context.Context, c *jobsCall) error {
	return c.each(c.args[1:], func(id string) (*client.Job, error) { return c.client.Replay(ctx, c.args[0], id) })
}

func jobsFunctions(ctx context.Context, c *jobsCall) error {
	page, err := c.client.Functions(ctx, c.limit, c.cursor)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(page)
	}
	rows := [][]string{{"FUNCTION", "PAUSED", "QUEUED", "SCHEDULED", "ACTIVE", "DEAD"}}
	for _, f := range page.Functions {
		paused := ""
		if f.Paused {
			paused = "paused"
		}
		rows = append(rows, []string{f.Name, paused, count(f.Queued), count(f.Scheduled), count(f.Active), count(f.Dead)})
	}
	return c.printTable(rows, page.Cursor)
}

// count shows a number that the manager stops counting at 1000.
func count(n int) string {
	if n >= 1000 {
		return "1000+"
	}
	return strconv.Itoa(n)
}

func jobsPause(ctx context.Context, c *jobsCall) error {
	return c.eachFunction("paused", true, func(f string) error { return c.client.Pause(ctx, f) })
}

func jobsResume(ctx context.Context, c *jobsCall) error {
	return c.eachFunction("flowing", false, func(f string) error { return c.client.Resume(ctx, f) })
}

func (c *jobsCall) eachFunction(what string, paused bool, call func(string) error) error {
	for _, f := range c.args {
		if err := call(f); err != nil {
			return err
		}
		if c.json {
			if err := c.printJSON(map[string]any{"name": f, "paused": paused}); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(c.out, "%s: %s\n", printable(f), what)
	}
	return nil
}

func jobsDeadLetters(ctx context.Context, c *jobsCall) error {
	page, err := c.client.DeadLetters(ctx, c.args[0], c.limit, c.cursor)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(page)
	}
	rows := [][]string{{"ID", "FAILED AT", "ATTEMPT", "KEY", "REASON"}}
	for i := range page.DeadLetters {
		l := &page.DeadLetters[i]
		rows = append(rows, []string{l.ID, stamp(l.FailedAt), fmt.Sprintf("%d/%d", l.Job.Attempt, l.Job.MaxAttempts), l.Job.Key, firstLine(l.Reason)})
	}
	return c.printTable(rows, page.Cursor)
}

func (c *jobsCall) printJSON(v any) error {
	e := json.NewEncoder(c.out)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

func (c *jobsCall) printTable(rows [][]string, cursor string) error {
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

// printJob shows what a job has, one member per line.
func (c *jobsCall) printJob(j *client.Job) error {
	t := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(t, "%s\t%s\n", name, printable(value))
		}
	}
	line("id", j.ID)
	line("function", j.Function)
	state := j.State
	if j.CancelRequested && !j.Terminal() {
		state += ", cancel requested"
	}
	if j.Dead {
		state += ", dead letter"
	}
	line("state", state)
	line("attempt", fmt.Sprintf("%d of %d", j.Attempt, j.MaxAttempts))
	line("priority", strconv.Itoa(j.Priority))
	line("key", j.Key)
	line("event", j.Event)
	if d := j.Dedup; d != nil {
		line("dedup", strings.TrimSpace(d.Strategy+" "+d.IfDeduplicated))
	}
	line("created", stamp(j.CreatedAt))
	line("run at", stamp(j.RunAt))
	line("started", stamp(j.StartedAt))
	line("finished", stamp(j.FinishedAt))
	if l := j.Lease; l != nil {
		line("worker", fmt.Sprintf("%s, lease for %s", l.Worker, time.Duration(l.ExpiresInMS)*time.Millisecond))
	}
	databases := make([]string, 0, len(j.WALLocations))
	for db := range j.WALLocations {
		databases = append(databases, db)
	}
	sort.Strings(databases)
	for _, db := range databases {
		line("wal "+printable(db), j.WALLocations[db])
	}
	line("error", j.Error)
	line("payload", string(j.Payload))
	line("result", string(j.Result))
	return t.Flush()
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
