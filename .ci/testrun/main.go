// Command testrun runs the stages of a test target, prints the lines of go test, and ends with what a reader asks next:
// where the time went, which tests were slow, and what did not run and why.
//
//	testrun [-since SECONDS] TITLE NAME=COMMAND... [+ NAME=COMMAND...]
//
// Each COMMAND is run by bash and must call `go test -json`. The stages run one after the other, also after one that failed.
// Those after a + do so beside the others. -since is the Unix time at which the target began, so that the summary shows what
// was built before. The exit code is 1 if anything failed, and 2 if the command line is wrong.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// stage is a command and what it is called.
type stage struct{ name, command string }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	began := time.Now()
	flags := flag.NewFlagSet("testrun", flag.ContinueOnError)
	flags.SetOutput(stderr)
	since := flags.Int64("since", 0, "Unix time in seconds at which the target began; 0: now")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	title, lanes, err := parse(flags.Args())
	if err != nil {
		fmt.Fprintln(stderr, "testrun:", err)
		return 2
	}
	s := newSummary(title)
	if *since > 0 {
		target := time.Unix(*since, 0)
		s.stage("setup and build", began.Sub(target))
		began = target
	}
	var failed atomic.Bool
	var running sync.WaitGroup
	for _, stages := range lanes {
		running.Go(func() {
			for _, st := range stages {
				start := time.Now()
				err := runStage(ctx, st, s, stdout, stderr)
				s.stage(st.name, time.Since(start))
				if err != nil {
					failed.Store(true)
					s.printf(stdout, "FAIL\tstage %s: %v\n", st.name, err)
				}
				if ctx.Err() != nil {
					return
				}
			}
		})
	}
	running.Wait()
	s.print(stdout, time.Since(began))
	if failed.Load() {
		return 1
	}
	return 0
}

// parse returns the stages of each lane.
func parse(args []string) (title string, lanes [][]stage, err error) {
	if len(args) < 2 {
		return "", nil, errors.New("the command line is testrun [-since SECONDS] TITLE NAME=COMMAND... [+ NAME=COMMAND...]")
	}
	lanes = make([][]stage, 1)
	for _, arg := range args[1:] {
		last := &lanes[len(lanes)-1]
		if arg == "+" && len(*last) > 0 {
			lanes = append(lanes, nil)
			continue
		}
		name, command, ok := strings.Cut(arg, "=")
		if !ok || name == "" || command == "" || strings.ContainsAny(name, " \t\n") {
			return "", nil, fmt.Errorf("the stage is %q, it must be NAME=COMMAND", arg)
		}
		*last = append(*last, stage{name, command})
	}
	if len(lanes[len(lanes)-1]) == 0 {
		return "", nil, errors.New("after the last + is no stage, it must be NAME=COMMAND")
	}
	return args[0], lanes, nil
}

// stopDelay is how long a stage may take to end after a signal.
const stopDelay = 20 * time.Second

// maxEvent bounds one line of go test -json.
const maxEvent = 16 << 20

func runStage(ctx context.Context, st stage, s *summary, stdout, stderr io.Writer) error {
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", st.command)
	cmd.Stderr = stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = stopDelay
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r := newReport(st.name, stdout, s)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, maxEvent)
	for lines.Scan() {
		r.line(lines.Bytes())
	}
	_, copyErr := io.Copy(io.Discard, out)
	r.end()
	if err := errors.Join(cmd.Wait(), lines.Err(), copyErr); err != nil {
		return err
	}
	if r.packages == 0 {
		return errors.New("no package was tested")
	}
	return nil
}
