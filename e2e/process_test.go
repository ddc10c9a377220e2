package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience ends what hangs. Nothing is measured with it.
const patience = 4 * time.Minute

// process is a running program whose log lines are read as they come.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended and its output was read

	mu      sync.Mutex
	lines   []string
	listens map[string]string // listener -> address
	changed chan struct{}     // closed and replaced when listens or done change
	err     error             // of Wait
	spent   bool              // no other test can use it
	guest   *process          // gets each further line, too

	// leave replaces the end of a process that continues: an Envoy that hosts another test after this one.
	leave func() error
}

// startProcess runs a program. Its caller stops it.
func startProcess(name, program string, args ...string) (*process, error) {
	p := &process{
		name: name, cmd: exec.Command(program, args...),
		done: make(chan struct{}), listens: map[string]string{}, changed: make(chan struct{}),
	}
	// The race detector has a process sleep for a second before it ends.
	p.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=50 "+os.Getenv("GORACE"))
	r, w := io.Pipe()
	p.cmd.Stdout, p.cmd.Stderr = w, w
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		sc := bufio.NewScanner(r)
		sc.Buffer(nil, 1<<20)
		for sc.Scan() {
			p.line(sc.Text())
		}
		_, _ = io.Copy(io.Discard, r) // after a line that is too long
	}()
	go func() {
		err := p.cmd.Wait()
		w.Close()
		<-read
		p.mu.Lock()
		p.err = err
		close(p.done)
		close(p.changed)
		p.changed = make(chan struct{})
		p.mu.Unlock()
	}()
	return p, nil
}

// maxLines bounds what is kept of a process's log.
const maxLines = 2000

func (p *process) line(text string) {
	var l struct {
		Msg      string `json:"msg"`
		Listener string `json:"listener"`
		Addr     string `json:"addr"`
		Address  string `json:"address"` // payments
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.lines) >= maxLines {
		p.lines = p.lines[1:]
	}
	p.lines = append(p.lines, text)
	if p.guest != nil {
		p.guest.line(text)
	}
	if json.Unmarshal([]byte(text), &l) == nil && strings.HasSuffix(l.Msg, "listening") {
		p.listens[l.Listener] = l.Addr + l.Address
		close(p.changed)
		p.changed = make(chan struct{})
	}
}

func (p *process) tail(n int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines[max(0, len(p.lines)-n):], "\n")
}

// logged waits for a line of the log that has all texts. The log comes through a pipe: a line may be read after the answer
// to the request that it is about.
func (p *process) logged(t *testing.T, texts ...string) {
	t.Helper()
	eventually(t, "the log of "+p.name, func() error {
		log := p.tail(maxLines)
		for line := range strings.Lines(log) {
			found := true
			for _, text := range texts {
				found = found && strings.Contains(line, text)
			}
			if found {
				return nil
			}
		}
		return fmt.Errorf("%s in no line of\n%s", strings.Join(texts, ", "), log)
	})
}

// addr waits until the process has logged the address of a listener.
func (p *process) addr(listener string) (string, error) {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		p.mu.Lock()
		a, ok := p.listens[listener]
		changed := p.changed
		p.mu.Unlock()
		if ok {
			return a, nil
		}
		select {
		case <-changed:
		case <-p.done:
			return "", fmt.Errorf("%s ended (%v) before it listened:\n%s", p.name, p.err, p.tail(30))
		case <-timeout.C:
			return "", fmt.Errorf("%s does not listen:\n%s", p.name, p.tail(30))
		}
	}
}

// kill ends the process as a crash would.
func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL) // fails only when it has ended
	<-p.done
	p.mu.Lock()
	p.err = nil
	p.mu.Unlock()
}

// spend has the process end with this test, even if it is an Envoy that hosts other proxies after it.
func (p *process) spend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spent = true
}

// follow passes each further line of the log to another process, too.
func (p *process) follow(guest *process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.guest = guest
}

// pause makes the process stand still as it is, until resume.
func (p *process) pause(t *testing.T) {
	t.Helper()
	p.spend()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }) // fails only when it has ended
	// The signal is on its way when the call returns; its threads stop one by one.
	eventually(t, p.name+" does not stand still", func() error {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		if err != nil || len(stats) == 0 {
			return fmt.Errorf("its threads: %d, %v", len(stats), err)
		}
		for _, file := range stats {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			// The state follows the name, which is in parentheses and may hold any character.
			if _, state, ok := bytes.Cut(text[max(0, bytes.LastIndexByte(text, ')')):], []byte(" ")); !ok || state[0] != 'T' {
				return fmt.Errorf("a thread runs: %s", text)
			}
		}
		return nil
	})
}

func (p *process) resume(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// stop asks the process to end and waits. An exit code other than 0 is an error: also
// the race detector's.
func (p *process) stop() error {
	if p.leave != nil {
		return p.leave()
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails only when it has ended
	select {
	case <-p.done:
	case <-time.After(patience):
		p.kill()
		return fmt.Errorf("%s did not end:\n%s", p.name, p.tail(30))
	}
	return p.ended()
}

// ended returns the error with which the process has ended, once.
func (p *process) ended() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		err := fmt.Errorf("%s ended badly: %w\n%s", p.name, p.err, strings.Join(p.lines[max(0, len(p.lines)-60):], "\n"))
		p.err = nil
		return err
	}
	return nil
}
