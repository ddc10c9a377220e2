package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"
)

// stopGrace is how long a process has between SIGTERM and SIGKILL, unless a test shortens it: twice what the proxies
// give to running requests.
const stopGrace = 20 * time.Second

// probeInterval is the pause between two checks whether a process is ready.
const probeInterval = 25 * time.Millisecond

// process is one running program.
type process struct {
	name    string
	logPath string
	cmd     *exec.Cmd
	grace   time.Duration
	// expected is set before the process is asked to end, so that its end is not an error.
	expected atomic.Bool
	// done is closed when it has ended. waitErr is the result of Wait and is read only after that.
	done    chan struct{}
	waitErr error
}

// program says what to run.
type program struct {
	name, path string
	args       []string
	// The files that standard error and standard output are appended to; they may be the same.
	logPath, outPath string
}

// startProcess runs the program. If the process ends by itself, surprise is called once with an error that says so.
func startProcess(what program, surprise func(error)) (*process, error) {
	p := &process{
		name: what.name, logPath: what.logPath, cmd: exec.Command(what.path, what.args...), grace: stopGrace, done: make(chan struct{}),
	}
	for _, out := range []struct {
		w    *io.Writer
		path string
	}{{&p.cmd.Stderr, what.logPath}, {&p.cmd.Stdout, what.outPath}} {
		log, err := os.OpenFile(out.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, fmt.Errorf("log file of the %s: %w", what.name, err)
		}
		// The child has the file open as its own from Start on.
		defer log.Close()
		*out.w = log
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the %s: %w", what.name, err)
	}
	go func() {
		p.waitErr = p.cmd.Wait()
		close(p.done)
		if !p.expected.Load() {
			surprise(p.endError())
		}
	}()
	return p, nil
}

// EndedError says that a process ended by itself.
type EndedError struct {
	// Process is its name: manager, payments, envoy or gateway.
	Process string
	// How says how it ended, for example "exit status 1" or "signal: killed".
	How string

	logPath, lastLines string
}

func (e *EndedError) Error() string {
	return fmt.Sprintf("the %s ended by itself (%s); the end of %s:\n%s", e.Process, e.How, e.logPath, e.lastLines)
}

// endError describes the end of a process that has ended.
func (p *process) endError() error {
	how := "exited"
	if p.waitErr != nil {
		how = p.waitErr.Error()
	}
	return &EndedError{Process: p.name, How: how, logPath: p.logPath, lastLines: lastLines(p.logPath)}
}

// waitReady calls probe until it succeeds. It gives up when ctx ends or the process has ended.
func (p *process) waitReady(ctx context.Context, probe func(context.Context) error) error {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return p.endError()
		case <-ctx.Done():
			return fmt.Errorf("the %s does not answer: %w; the end of %s:\n%s", p.name, err, p.logPath, lastLines(p.logPath))
		case <-tick.C:
		}
	}
}

// stop ends the process and everything that it has started, and returns when the process has ended. An exit code other
// than 0, or the need for SIGKILL, is an error.
func (p *process) stop() error {
	p.expected.Store(true)
	p.signal(syscall.SIGTERM)
	timer := time.NewTimer(p.grace)
	defer timer.Stop()
	select {
	case <-p.done:
		// Kill whatever is left in its group.
		p.signal(syscall.SIGKILL)
		if p.waitErr != nil {
			return fmt.Errorf("the %s did not end well: %w; see %s", p.name, p.waitErr, p.logPath)
		}
		return nil
	case <-timer.C:
		p.kill()
		return fmt.Errorf("the %s did not end within %v of SIGTERM and was killed; see %s", p.name, p.grace, p.logPath)
	}
}

// kill ends the process as a crash would, with SIGKILL, and returns when it has ended.
func (p *process) kill() {
	p.expected.Store(true)
	p.signal(syscall.SIGKILL)
	<-p.done
}

// signal sends sig to the process group. It is not an error if the group has ended already.
func (p *process) signal(sig syscall.Signal) {
	_ = syscall.Kill(-p.cmd.Process.Pid, sig)
}

// lastLines returns the end of a file, indented, for an error message.
func lastLines(path string) string {
	const lines, bytesRead = 10, 8 << 10
	f, err := os.Open(path)
	if err != nil {
		return "  (" + err.Error() + ")"
	}
	defer f.Close()
	if end, err := f.Seek(0, io.SeekEnd); err == nil {
		_, err = f.Seek(max(0, end-bytesRead), io.SeekStart)
		if err != nil {
			return "  (" + err.Error() + ")"
		}
	}
	b, err := io.ReadAll(io.LimitReader(f, bytesRead))
	if err != nil && !errors.Is(err, io.EOF) {
		return "  (" + err.Error() + ")"
	}
	all := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return "  " + string(bytes.Join(all, []byte("\n  ")))
}
