package languages

import (
	"bufio"
	"encoding/json"
	"errors"
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

	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// patience is how long a test waits for what must happen.
const patience = 3 * time.Minute

// language is a client and how its driver starts.
type language struct {
	name string
	// command is the driver's command line. Its error says in one line what the machine lacks.
	command func() ([]string, error)
	env     []string
	deep    bool // make test does not install what the driver needs
}

// goDriver is the environment variable that makes a driver of this test program.
const goDriver = "ONCEGATE_LANGUAGES_GO_DRIVER"

var languages = []language{
	{
		name:    "go",
		command: func() ([]string, error) { return []string{os.Args[0]}, nil },
		env:     []string{goDriver + "=1"},
	},
	{
		name:    "typescript",
		command: program("node", "make test-deep installs it", "../../../../build/typescript/test/driver.js"),
		deep:    true,
	},
	{name: "python", command: python("threads"), env: []string{"PYTHONDONTWRITEBYTECODE=1"}},
	{name: "python-asyncio", command: python("asyncio"), env: []string{"PYTHONDONTWRITEBYTECODE=1"}},
}

func python(kind string) func() ([]string, error) {
	return program("python3", "make test installs Debian's package python3", filepath.Join("..", "..", "..", "client", "python", "tests", "driver.py"), kind)
}

func TestMain(m *testing.M) {
	if os.Getenv(goDriver) != "" {
		os.Exit(drive(os.Stdin, os.Stdout))
	}
	os.Exit(m.Run())
}

// program is a command line in a folder of the project, with a program of PATH.
func program(name, install string, args ...string) func() ([]string, error) {
	return func() ([]string, error) {
		path, err := exec.LookPath(name)
		if err != nil {
			return nil, fmt.Errorf("there is no %s in PATH: %s", name, install)
		}
		return append([]string{path}, args...), nil
	}
}

// each runs a test for the client of each language.
func each(t *testing.T, test func(t *testing.T, l *language)) {
	t.Parallel()
	for i := range languages {
		t.Run(languages[i].name, func(t *testing.T) {
			if languages[i].deep {
				deep.Only(t)
			}
			t.Parallel()
			test(t, &languages[i])
		})
	}
}

// driver is a running driver.
type driver struct {
	t       *testing.T
	l       *language
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	errors  *tail
	log     string // the file that handlers write
	ended   chan struct{}
	endedBy error
	mu      sync.Mutex // over a command and its answer
}

// answer is a driver's answer to a command.
type answer struct {
	OK          json.RawMessage `json:"ok,omitempty"`
	Error       *failure        `json:"error,omitempty"`
	Unsupported bool            `json:"unsupported,omitempty"`

	text string
}

// failure is an error of a client.
type failure struct {
	Status     int    `json:"status"`
	Code       string `json:"code"`
	Detail     string `json:"detail"`
	Temporary  bool   `json:"temporary"`
	RetryAfter int64  `json:"retry_after_ms"`
	Replayed   bool   `json:"replayed"`
}

// start starts a language's driver, which ends with the test.
func (l *language) start(t *testing.T) *driver {
	t.Helper()
	line, err := l.command()
	if err != nil {
		t.Fatalf("the client for %s cannot be tested: %v", l.name, err)
	}
	d := &driver{t: t, l: l, cmd: exec.Command(line[0], line[1:]...), errors: &tail{}, ended: make(chan struct{}), log: filepath.Join(t.TempDir(), "handlers")}
	d.cmd.Env = append(os.Environ(), l.env...)
	d.cmd.Stderr = d.errors
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the test
	if d.in, err = d.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	d.out = bufio.NewReader(out)
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(d.ended)
		state, err := d.cmd.Process.Wait()
		if err == nil && !state.Success() {
			err = errors.New(state.String())
		}
		d.endedBy = err
	}()
	t.Cleanup(func() {
		_ = d.in.Close()
		select {
		case <-d.ended:
		case <-time.After(patience):
			t.Errorf("the driver did not end with its input")
			d.kill()
		}
		_ = out.Close()
		if t.Failed() && d.errors.String() != "" {
			t.Logf("the driver's standard error:\n%s", d.errors)
		}
	})
	return d
}

// kill ends the driver at once.
func (d *driver) kill() {
	_ = d.cmd.Process.Kill()
	<-d.ended
}

// terminate asks the driver to stop, and waits for its end.
func (d *driver) terminate() error {
	d.t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		d.t.Fatal(err)
	}
	select {
	case <-d.ended:
	case <-time.After(patience):
		_ = d.cmd.Process.Signal(syscall.SIGQUIT) // says where it is
		d.t.Fatal("the driver does not stop")
	}
	return d.endedBy
}

// begin sends a command and returns a channel for its answer. within bounds it, 0 for not at all.
func (d *driver) begin(op, args string, within time.Duration) <-chan answer {
	d.t.Helper()
	if args == "" {
		args = "{}"
	}
	line := fmt.Sprintf(`{"op":%q,"args":%s`, op, args)
	if within > 0 {
		line += fmt.Sprintf(`,"within_ms":%d`, within.Milliseconds())
	}
	line = strings.ReplaceAll(line, "\n", " ") + "}\n"
	got := make(chan answer, 1)
	go func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		a := answer{text: "no answer of the driver"}
		defer func() { got <- a }()
		if _, err := io.WriteString(d.in, line); err != nil {
			a.text += ": " + err.Error()
			return
		}
		text, err := d.out.ReadString('\n')
		if err != nil {
			a.text += ": " + err.Error()
			return
		}
		a.text = strings.TrimSpace(text)
		if err := json.Unmarshal([]byte(text), &a); err != nil {
			a.text = "not an answer: " + a.text
		}
	}()
	return got
}

// call sends a command and waits for its answer.
func (d *driver) call(op, args string, within time.Duration) answer {
	d.t.Helper()
	return await(d.t, "the answer to "+op, d.begin(op, args, within))
}

// must is call for a command that must succeed.
func (d *driver) must(op, args string) json.RawMessage {
	d.t.Helper()
	a := d.call(op, args, 0)
	if a.OK == nil {
		d.t.Fatalf("%s %s: %s\n%s", op, args, a.text, d.errors)
	}
	return a.OK
}

// open makes the driver's client, with short pauses.
func (d *driver) open(url, more string) {
	d.t.Helper()
	d.must("open", fmt.Sprintf(`{"url":%q,"backoff_base_ms":1,"backoff_max_ms":10%s}`, url, more))
}

// work starts the driver's worker. handlers is a JSON object.
func (d *driver) work(handlers, more string) {
	d.t.Helper()
	d.must("work", fmt.Sprintf(`{"handlers":%s,"log":%q%s}`, handlers, d.log, more))
}

// event is a line that a handler wrote.
type event struct {
	Event   string `json:"event"`
	Job     string `json:"job"`
	Attempt int    `json:"attempt"`
	Cause   string `json:"cause"`
}

// events returns what handlers wrote so far.
func (d *driver) events() []event { return readEvents(d.t, d.log) }

func readEvents(t *testing.T, file string) (all []event) {
	t.Helper()
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var e event
		if !strings.HasSuffix(line, "\n") { // it is being written
			break
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%s: line %q: %v", file, line, err)
		}
		all = append(all, e)
	}
	return all
}

// await waits for a value.
func await[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("never: %s", what)
		panic("unreachable")
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// tail keeps the last bytes that were written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (w *tail) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b = append(w.b, b...)
	w.b = w.b[max(0, len(w.b)-8<<10):]
	return len(b), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.b)
}
