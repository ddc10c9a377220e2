package cli

import (
	"context"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/settings"
)

// operatorCommand is one word after "oncegate jobs" or "oncegate ledger".
type operatorCommand struct {
	args, summary string
	// least and most bound the arguments; most -1 means any number.
	least, most int
	flags       func(*operatorCall, *flag.FlagSet)
	run         func(context.Context, *operatorCall) error
}

// operatorCall is one call of them.
type operatorCall struct {
	client *client.Client
	admin  *admin.Client
	in     io.Reader
	out    io.Writer
	json   bool
	args   []string

	function, state, cursor string
	limit                   int
	wait, delay             time.Duration
	delayed                 bool

	filter           admin.ListQuery // without what other commands have too: function, state, limit and cursor
	filtered, dryRun bool
	submission       submissionFlags
	limits           admin.Limits
	rate             admin.Rate

	key, scope string
	resolution admin.Resolution
	bodyFile   string

	log logFlags
}

// maxRetryAfter is how long a command waits for what a manager says will be over then. A quarantine takes longer.
const maxRetryAfter = 5 * time.Second

const (
	managerURLEnv     = "ONCEGATE_MANAGER_URL"
	defaultManagerURL = "http://127.0.0.1:8090"
)

// operators is a command whose words are operators' calls to a running manager.
func operators(group string, all func() map[string]operatorCommand) func(context.Context, Environment, []string) error {
	return func(ctx context.Context, env Environment, args []string) error {
		return operatorMain(ctx, env, group, all(), args)
	}
}

// operatorMain makes operators' calls to a running manager; group is the command
// whose words all are.
func operatorMain(ctx context.Context, env Environment, group string, all map[string]operatorCommand, args []string) error {
	if len(args) == 0 {
		return settings.Usagef("a command is missing, see oncegate %s --help", group)
	}
	if isHelp(args[0]) {
		operatorHelp(env.Stdout, group, all)
		return nil
	}
	cmd, ok := all[args[0]]
	if !ok {
		return settings.Usagef("unknown command %q, see oncegate %s --help", args[0], group)
	}
	call, err := parseOperatorCall(env, group, args[0], cmd, args[1:])
	if err != nil {
		return err
	}
	err = cmd.run(ctx, call)
	switch {
	case err == nil:
		return nil
	case client.HasCode(err, api.CodeInvalidRequest): // what only the manager can check, such as a cursor
		return settings.Usagef("%s: %v", args[0], err)
	}
	return fmt.Errorf("%s: %w", args[0], err)
}

func parseOperatorCall(env Environment, group, name string, cmd operatorCommand, args []string) (*operatorCall, error) {
	call := &operatorCall{in: env.Stdin, out: env.Stdout}
	fs := flag.NewFlagSet(group+" "+name, flag.ContinueOnError)
	url, tokenFile, timeout := defaultManagerURL, "", 15*time.Second
	if v, ok := env.Getenv(managerURLEnv); ok && v != "" {
		url = v
	}
	fs.StringVar(&url, "manager", url, "`URL` of the manager, or unix:PATH ["+managerURLEnv+"]")
	fs.StringVar(&tokenFile, "token-file", "", "`file` that begins with the bearer token; empty lines and # comments are skipped")
	var certificates clientTLS
	certificates.flags(fs)
	fs.Func("timeout-seconds", "what one call may take, 0.1 to 600 (default 15)", settings.Seconds(0.1, 600, &timeout))
	fs.BoolVar(&call.json, "json", false, "print JSON, one value per line")
	if cmd.flags != nil {
		cmd.flags(call, fs)
	}
	var err error
	call.args, err = parseFlags(fs, args, func() {
		fmt.Fprintf(env.Stdout, "usage: oncegate %s %s [flags] %s\n", group, name, cmd.args)
		fs.SetOutput(env.Stdout)
		fs.PrintDefaults()
	})
	switch {
	case errors.Is(err, flag.ErrHelp):
		return nil, err
	case err != nil:
		return nil, settings.Usagef("%s: %v", name, err)
	}
	if n := len(call.args); n < cmd.least || cmd.most >= 0 && n > cmd.most {
		return nil, settings.Usagef("%s: %d arguments: must be %q", name, n, strings.TrimSpace(name+" "+cmd.args))
	}
	if err := call.check(cmd.args); err != nil {
		return nil, settings.Usagef("%s: %v", name, err)
	}
	token, err := readToken(tokenFile)
	if err != nil {
		return nil, err
	}
	httpClient, err := certificates.client()
	if err != nil {
		return nil, err
	}
	call.client, err = client.New(client.Options{URL: url, Token: token, Timeout: timeout, MaxAttempts: 3, MaxRetryAfter: maxRetryAfter, HTTP: httpClient})
	if err != nil {
		return nil, settings.Usagef("--manager %q: must be http:// or https:// with a host, for example %s, or unix:PATH without --ca-file and --cert-file", url, defaultManagerURL)
	}
	call.admin = admin.New(call.client)
	return call, nil
}

// check looks at ids, names and keys, so that none of them makes a path of another
// call. words are what the arguments are called; the last one may be repeated, and those in brackets left out.
func (c *operatorCall) check(words string) error {
	names := strings.Fields(strings.NewReplacer("[", "", "]", "", "...", "").Replace(words))
	var errs []error
	for i, arg := range c.args {
		switch word := names[min(i, len(names)-1)]; word {
		case "ID":
			errs = append(errs, jobs.CheckID(word, arg))
		case "RECORD":
			if _, err := base64.RawURLEncoding.DecodeString(arg); arg == "" || err != nil {
				errs = append(errs, &api.FieldError{Field: word, Value: arg, Allowed: "must be what unreadable list shows"})
			}
		case "PAYLOAD": // any JSON, for the manager to judge
		case "KEY":
			errs = append(errs, api.ValidateKey(arg))
		case "LOG":
			errs = append(errs, logs.CheckName(arg))
		default:
			errs = append(errs, jobs.CheckName(word, arg))
		}
	}
	if c.function != "" {
		errs = append(errs, jobs.CheckName("--function", c.function))
	}
	if key := c.submission.IdempotencyKey; key != "" {
		if err := api.ValidateKey(key); err != nil {
			return fmt.Errorf("--idempotency-key: %w", err)
		}
	}
	err := errors.Join(append(errs, api.ValidateScope(c.scope))...)
	var field *jobs.FieldError
	var bad *api.FieldError
	switch { // the first one
	case errors.As(err, &field):
		return fmt.Errorf("%s %s: must be %s", field.Field, field.Value, field.Allowed)
	case errors.As(err, &bad):
		return bad
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
		return "", settings.Usagef("--token-file: %v", err)
	}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if token, ok := httpd.TokenOf(line); ok {
			line = token
		}
		if !api.Visible(line, 0, 4096) {
			return "", settings.Usagef("--token-file %s: a token must be up to 4096 visible ASCII characters", file)
		}
		return line, nil
	}
	return "", settings.Usagef("--token-file %s: must hold a token", file)
}

func operatorHelp(w io.Writer, group string, all map[string]operatorCommand) {
	fmt.Fprintln(w, "usage: oncegate "+group+" COMMAND [flags]; talks to the manager at --manager URL, "+managerURLEnv+", or "+defaultManagerURL)
	names := slices.Sorted(maps.Keys(all))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, name := range names {
		fmt.Fprintf(t, "  %s %s\t%s\n", name, all[name].args, all[name].summary)
	}
	_ = t.Flush()
	fmt.Fprintln(w, "oncegate "+group+" COMMAND --help lists the flags of a command.")
}

func (c *operatorCall) pageFlags(fs *flag.FlagSet) {
	fs.Func("limit", "entries on this page, 1 to 1000 (default 100)", settings.Number(1, 1000, &c.limit))
	fs.StringVar(&c.cursor, "cursor", "", "`cursor` that the page before ended with")
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
