// Command testrun runs the stages of a test target, prints the lines of go test, and ends with what a reader asks next:
// where the time went, which tests were slow, and what did not run and why.
//
//	testrun [-since SECONDS] TITLE NAME=COMMAND...
//
// Each COMMAND is run by bash and must call `go test -json`. All stages run, also after one that failed. -since is the Unix
// time at which the target began, so that the summary shows what was built before. The exit code is 1 if anything failed, and
// 2 if the command line is wrong.
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
	title, stages, err := parse(flags.Args())
	if err != nil {
		fmt.Fprintln(stderr, "testrun:", err)
		return 2
	}
	s := newSummary(title)
	if *since > 0 {
		s.stage("setup and build", began.Sub(time.Unix(*since, 0)))
	}
	failed := false
	for _, st := range stages {
		start := time.Now()
		err := runStage(ctx, st, s, stdout, stderr)
		s.stage(st.name, time.Since(start))
		if err != nil {
			failed = true
			fmt.Fprintf(stdout, "FAIL\tstage %s: %v\n", st.name, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	s.print(stdout)
	if failed {
		return 1
	}
	return 0
}

func parse(args []string) (title string, stages []stage, err error) {
	if len(args) < 2 {
		return "", nil, errors.New("the command line is testrun [-since SECONDS] TITLE NAME=COMMAND, with one command or more")
	}
	for _, arg := range args[1:] {
		name, command, ok := strings.Cut(arg, "=")
		if !ok || name == "" || command == "" || strings.ContainsAny(name, " \t\n") {
			return "", nil, fmt.Errorf("the stage is %q, it must be NAME=COMMAND", arg)
		}
		stages = append(stages, stage{name, command})
	}
	return args[0], stages, nil
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
