package main

import (
	"context"
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

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/jobs"
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
	err = cmd.run(ctx, call)
	switch {
	case err == nil:
		return nil
	case client.HasCode(err, api.CodeInvalidRequest): // what only the manager can tell, such as a cursor
		return usagef("%s: %v", args[0], err)
	}
	return fmt.Errorf("%s: %w", args[0], err)
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
	fs.StringVar(&tokenFile, "token-file", "", "`file` that begins with the bearer token; empty lines and # comments are skipped")
	var certificates clientTLS
	certificates.flags(fs)
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
	if err := call.check(cmd.args); err != nil {
		return nil, usagef("%s: %v", name, err)
	}
	token, err := readToken(tokenFile)
	if err != nil {
		return nil, err
	}
	httpClient, err := certificates.client()
	if err != nil {
		return nil, err
	}
	call.client, err = client.New(client.Options{URL: url, Token: token, Timeout: timeout, MaxAttempts: 3, HTTP: httpClient})
	if err != nil {
		return nil, usagef("--manager %q: must be http:// or https:// with a host, for example %s", url, defaultManagerURL)
	}
	return call, nil
}

// check looks at ids and names, so that none of them makes a path of another
// call. words are what the arguments are called; the last one may be repeated.
func (c *jobsCall) check(words string) error {
	names := strings.Fields(strings.TrimSuffix(words, "..."))
	var err error
	for i, arg := range c.args {
		word := names[min(i, len(names)-1)]
		if word == "ID" {
			err = errors.Join(err, jobs.CheckID(word, arg))
		} else {
			err = errors.Join(err, jobs.CheckName(word, arg))
		}
	}
	if c.function != "" {
		err = errors.Join(err, jobs.CheckName("--function", c.function))
	}
	var field *jobs.FieldError
	if errors.As(err, &field) { // the first one
		return fmt.Errorf("%s %s: must be %s", field.Field, field.Value, field.Allowed)
	}
	return nil
}

// readToken returns the first token of a file, "" when there is no file. Files
// for serve --auth-token-file will do: their comments are skipped, and what they
// say about a token's rights.
func readToken(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", usagef("--token-file: %v", err)
	}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if fields := strings.Fields(line); len(fields) == 2 && fields[1] == "admin" {
			line = fields[0]
		}
		if len(line) > 4096 || strings.ContainsFunc(line, func(r rune) bool { return r < 0x21 || r > 0x7e }) {
			return "", usagef("--token-file %s: a token must be up to 4096 visible ASCII characters", file)
		}
		return line, nil
	}
	return "", usagef("--token-file %s: must hold a token", file)
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
	return failures(failed, len(args))
}

// failures is the first of them, and how many more there are.
func failures(failed []error, of int) error {
	if len(failed) == 0 {
		return nil
	}
	if rest := len(failed) - 1; rest > 0 {
		return fmt.Errorf("%w (and %d more of %d failed)", failed[0], rest, of)
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

func jobsPause(ctx context.Context, c *jobsCall) error {
	return c.eachFunction("paused", true, func(f string) error { return c.client.Pause(ctx, f) })
}

func jobsResume(ctx context.Context, c *jobsCall) error {
	return c.eachFunction("flowing", false, func(f string) error { return c.client.Resume(ctx, f) })
}

// eachFunction goes on after a refusal, as each does.
func (c *jobsCall) eachFunction(what string, paused bool, call func(string) error) error {
	var failed []error
	for _, f := range c.args {
		if err := call(f); err != nil {
			failed = append(failed, err)
			continue
		}
		if c.json {
			if err := c.printJSON(map[string]any{"name": f, "paused": paused}); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(c.out, "%s: %s\n", printable(f), what)
	}
	return failures(failed, len(c.args))
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
