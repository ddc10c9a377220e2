// Command outbox moves numbered messages from an outbox to a log of a manager, in a process that is
// killed again and again, and checks with a reader that the log has neither a gap nor a double.
//
//	go run ./examples/outbox --url http://127.0.0.1:8090 --messages 2000 --kills 20
//
// The writer keeps what it needs for that in the outbox: each message has an id that does not
// change, here its number, as the row of a database table would have. After each acknowledged
// batch the writer saves how far it got. It may be killed before that; then it
// sends messages again that the log has, and the log says so.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

type options struct {
	url, log, state string
	messages, kills int
	write           bool
	killed          func() // called when a writer was killed, if not nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	flags := flag.NewFlagSet("outbox", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.url, "url", "http://127.0.0.1:8090", "`URL` of the manager")
	flags.StringVar(&o.log, "log", "outbox", "`name` of the log, which should be new")
	flags.StringVar(&o.state, "state", "", "`file` in which the writer saves how far it got (default one that is removed)")
	flags.IntVar(&o.messages, "messages", 2000, "how many messages the outbox has")
	flags.IntVar(&o.kills, "kills", 20, "how often the writer is killed at most")
	flags.BoolVar(&o.write, "write", false, "be the writer")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	var err error
	if o.write {
		err = write(ctx, o)
	} else {
		err = supervise(ctx, o, stdout, stderr)
	}
	if err != nil {
		fmt.Fprintf(stderr, "outbox: %v\n", err)
		if client.HasCode(err, api.CodeFenced) {
			return exitFenced
		}
		return 1
	}
	return 0
}

// exitFenced is the exit code of a writer with an epoch that is not the newest.
const exitFenced = 3

func (o *options) open() (*client.Log, error) {
	c, err := client.New(client.Options{URL: o.url})
	if err != nil {
		return nil, err
	}
	return c.OpenLog(o.log)
}

// write sends the messages after the saved one. A writer that runs at the same time is fenced.
func write(ctx context.Context, o options) error {
	l, err := o.open()
	if err != nil {
		return err
	}
	done, err := saved(o.state)
	if err != nil {
		return err
	}
	w, err := l.OpenIdempotentWriter(ctx, client.WriterOptions{Writer: "outbox"})
	if err != nil {
		return err
	}
	const batch = 10
	for done < o.messages {
		var results []<-chan client.WriteResult
		for n := done + 1; n <= min(done+batch, o.messages); n++ {
			results = append(results, w.WriteAsync(ctx, client.WriteMessage{
				IdempotencyID: strconv.Itoa(n), Payload: fmt.Appendf(nil, "message %d", n),
			}))
		}
		for _, result := range results {
			if r := <-result; r.Err != nil {
				return r.Err
			}
			done++
		}
		if err := save(o.state, done); err != nil {
			return err
		}
	}
	return w.Close(ctx)
}

func saved(file string) (int, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// save replaces the file as a whole: a reader never sees half a number.
func save(file string, n int) error {
	if err := os.WriteFile(file+".tmp", []byte(strconv.Itoa(n)), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".tmp", file)
}

// supervise starts the writer, kills it some time later, starts it again, and checks the log.
func supervise(ctx context.Context, o options, stdout, stderr io.Writer) error {
	l, err := o.open()
	if err != nil {
		return err
	}
	if _, err := l.Create(ctx, client.LogConfig{}); err != nil {
		return err
	}
	if o.state == "" {
		dir, err := os.MkdirTemp("", "outbox-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		o.state = filepath.Join(dir, "done")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	starts, fenced, ended := 0, 0, false
	for !ended {
		starts++
		cmd := exec.CommandContext(ctx, self, "--write", "--url", o.url, "--log", o.log, "--state", o.state, "--messages", strconv.Itoa(o.messages))
		cmd.Stderr = stderr
		if err := cmd.Start(); err != nil {
			return err
		}
		exited := make(chan error, 1)
		go func() { exited <- cmd.Wait() }()
		var kill <-chan time.Time
		if starts-fenced <= o.kills {
			kill = time.After(time.Duration(20+rand.IntN(100)) * time.Millisecond)
		}
		select {
		case err := <-exited:
			// The manager may get the call by which a killed writer opened its epoch only now, and fence the one that follows it.
			if cmd.ProcessState.ExitCode() == exitFenced && fenced < starts-1-fenced {
				fenced++
				continue
			}
			if err != nil {
				return fmt.Errorf("the writer: %w", err)
			}
			ended = true
		case <-kill:
			_ = cmd.Process.Kill()
			<-exited
			if o.killed != nil {
				o.killed()
			}
		}
	}
	if err := check(ctx, l, o.messages); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%d messages, each once and in order; the writer was killed %d times and fenced %d times\n", o.messages, starts-1-fenced, fenced)
	return nil
}

// check reads the log from its beginning: message n must be entry n.
func check(ctx context.Context, l *client.Log, messages int) error {
	next, after := 1, ""
	for {
		page, err := l.Read(ctx, client.LogQuery{After: after, Limit: 1000})
		if err != nil {
			return err
		}
		for _, e := range page.Entries {
			if want := strconv.Itoa(next); e.ID != want || e.Entry != uint64(next) || string(e.Payload) != "message "+want {
				return fmt.Errorf("entry %d is message %s, message %s comes next", e.Entry, e.ID, want)
			}
			next++
		}
		if len(page.Entries) == 0 {
			break
		}
		after = page.Cursor
	}
	if next != messages+1 {
		return fmt.Errorf("the log ends with message %d of %d", next-1, messages)
	}
	return nil
}
