package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/oncegate/oncegate/examples/internal/stack"
	"github.com/oncegate/oncegate/manager/managertest/azuretest"
	"github.com/oncegate/oncegate/manager/managertest/deep"
	"github.com/oncegate/oncegate/manager/managertest/ports"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// defaultPorts are the ports that the pages name. A test replaces them by free ones, and back in what is printed.
var defaultPorts = []string{"10000", "10001", "8090", "8091", "9000", "9901", "8190", "8191"}

// before are commands that the reader of a page has run before: the page is about a manager that runs.
var before = map[string]string{
	"docs/reference/LOGS.md": "oncegate serve --data-dir ledger",
}

// onEtcd replaces the members a, b and c by members on this machine.
func onEtcd(t *testing.T) (string, []string) {
	members, err := servers.StartEtcdMembers(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	var replace []string
	for i, m := range members {
		t.Cleanup(m.Close)
		replace = append(replace, "http://"+string(rune('a'+i))+":2379", m.URL)
	}
	// Another manager of the page listens at the usual port.
	return "", append(replace, "oncegate serve", "oncegate serve --listen 127.0.0.1:"+freePort(t))
}

// preparations are by page and first line of a block. What is a placeholder in it is replaced, in turns, and the commands run before.
var preparations = map[string]func(t *testing.T) (before string, replace []string){
	"docs/stores.md: oncegate serve --store etcd": onEtcd,
	"docs/stores.md: oncegate serve --store postgres": func(t *testing.T) (string, []string) {
		return "", []string{"postgres://oncegate@db/oncegate", servers.Postgres(t).URL}
	},
	"docs/backup.md: oncegate quarantine begin --store postgres": func(t *testing.T) (string, []string) {
		// Only a store that a manager has used can be quarantined.
		return "DSN='" + servers.Postgres(t).URL + "'\noncegate serve --store postgres --store-dsn \"$DSN\" --listen 127.0.0.1:" + freePort(t) + "\nkill $!; wait $!", nil
	},
	// Object storage on this machine. A reader of the page types slowly enough that something was shipped.
	"docs/backup.md: export AWS_ACCESS_KEY_ID=...": func(t *testing.T) (string, []string) {
		backend := s3mem.New()
		if err := backend.CreateBucket("ledgers"); err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog()), gofakes3.WithoutVersioning()).Server())
		t.Cleanup(server.Close)
		return "", []string{
			"AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=...", "AWS_ENDPOINT_URL=" + server.URL + " AWS_ACCESS_KEY_ID=tests AWS_SECRET_ACCESS_KEY=secret",
			"oncegate serve --data-dir /var/lib/oncegate", "oncegate serve --listen 127.0.0.1:" + freePort(t) + " --data-dir s3",
			"oncegate ship status --from s3://ledgers/production/manager-1", "until oncegate ship status --from s3://ledgers/production/manager-1; do sleep 0.1; done",
			"/var/lib/oncegate-new", "s3-new",
		}
	},
	"docs/backup.md: export GOOGLE_APPLICATION_CREDENTIALS=": func(t *testing.T) (string, []string) {
		return "export STORAGE_EMULATOR_HOST=" + fakeGCS(t), []string{
			"oncegate serve --data-dir /var/lib/oncegate", "oncegate serve --listen 127.0.0.1:" + freePort(t) + " --data-dir gs",
			"--ship-to gs://ledgers/production/manager-1", "--ship-to gs://ledgers/production/manager-1\nuntil oncegate ship status --from gs://ledgers/production/manager-1; do sleep 0.1; done",
		}
	},
	"docs/backup.md: export AZURE_STORAGE_ACCOUNT=": func(t *testing.T) (string, []string) {
		return "", []string{
			"AZURE_STORAGE_ACCOUNT=oncegateledgers AZURE_STORAGE_KEY=...", strings.Join(azuretest.Start(t), " "),
			"oncegate serve --data-dir /var/lib/oncegate", "oncegate serve --listen 127.0.0.1:" + freePort(t) + " --data-dir azure",
			"--ship-to azblob://ledgers/production/manager-1", "--ship-to azblob://" + azuretest.Container + "/production/manager-1\nuntil oncegate ship status --from azblob://" + azuretest.Container + "/production/manager-1; do sleep 0.1; done",
		}
	},
	// Fewer keys than a measurement takes, and an Envoy without the reader's flags: the program sets its own.
	"docs/scale.md: make build envoy": func(t *testing.T) (string, []string) {
		bin, err := filepath.Abs(filepath.Join(root, "build"))
		if err != nil {
			t.Fatal(err)
		}
		return "", []string{"go run ./examples/capacity --measure", "ENVOY_BIN=" + envoyOf(t, bin) + " go run ./examples/capacity --measure --keys 100 --bin " + bin}
	},
	"docs/operating.md: oncegate ledger list --state unknown": unknownKey("order-1"),
	"docs/operating.md: oncegate ledger resolve KEY":          unknownKey("order-2"),
	// The record of an entry in Redis, whose version is damaged.
	"docs/operating.md: oncegate unreadable delete COLLECTION": func(t *testing.T) (string, []string) {
		port, dsn := freePort(t), servers.Redis(t).URL
		socket, _, _ := strings.Cut(strings.TrimPrefix(dsn, "unix://"), "?")
		return `oncegate serve --store redis --store-dsn ` + dsn + ` --listen 127.0.0.1:` + port + `
curl -f -o /dev/null 127.0.0.1:` + port + `/v1/ledger/reserve -H 'Content-Type: application/json' -d '{"key":"order-3","scope":"shop","token":"t"}'
redis-cli -s ` + socket + ` setrange '{oncegate}:r:ledger:4:shoporder-3' 19 c`, []string{
				"oncegate unreadable delete COLLECTION RECORD", `( export ONCEGATE_MANAGER_URL=http://127.0.0.1:` + port + `
oncegate unreadable delete $(oncegate unreadable list | awk '/order-3/ {print $1, $NF}')
[[ $(oncegate unreadable list) != *order-3* ]] )`,
			}
	},
}

// fakeGCS starts a server with Google Cloud Storage's interface and the bucket "ledgers", and returns its address.
func fakeGCS(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gcs") // a socket's name may have 100 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "socket")
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "build", "fakegcs"), socket, "ledgers")
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v (make build/fakegcs builds it)", err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // t's context has ended then
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	for {
		if c, err := dial(t.Context(), "", ""); err == nil {
			c.Close()
			break
		} else if t.Context().Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "gcs"})
	proxy.Transport = &http.Transport{DialContext: dial}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// unknownKey makes a key with an unknown outcome, and an answer to record for it.
func unknownKey(key string) func(*testing.T) (string, []string) {
	return func(*testing.T) (string, []string) {
		call := func(path string) string {
			return fmt.Sprintf(`curl -f -o /dev/null localhost:8090/v1/ledger/%s -H 'Content-Type: application/json' -d '{"key":"%s","scope":"shop","token":"t"}'`+"\n", path, key)
		}
		return call("reserve") + call("unknown") + `echo '{"id": "pay_1"}' >answer.json`, []string{"KEY", key, "SCOPE", "shop"}
	}
}

// prepared is a block with what its placeholders stand for.
func prepared(t *testing.T, b block) block {
	t.Helper()
	for id, prepare := range preparations {
		if !strings.HasPrefix(b.id(), id) {
			continue
		}
		before, replace := prepare(t)
		for i := 0; i < len(replace); i += 2 {
			if !strings.Contains(b.text, replace[i]) {
				t.Fatalf("%s: there is no %s", b, replace[i])
			}
		}
		b.text = strings.TrimPrefix(before+"\n"+strings.NewReplacer(replace...).Replace(b.text), "\n")
		return b
	}
	return b
}

// freePort holds a port for a server until the test ends.
func freePort(t *testing.T) string {
	t.Helper()
	port, err := ports.Hold()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(port.Release)
	return strings.TrimPrefix(port.Address, "127.0.0.1:")
}

// reader is a person who pastes a page's blocks into a terminal, in a folder that looks like the repository.
type reader struct {
	page, dir string
	ports     map[string]string // by the port in the pages
}

// killedJob is what a shell says of a server that the page kills.
var killedJob = regexp.MustCompile(`(?m)^\S+/session\.sh: line \d+: +\d+ Killed .*\n`)

var portInText = regexp.MustCompile(`(:|port_value: |-port |"127\.0\.0\.1", )(\d{4,5})\b`)

func (r *reader) toHere(text string) string {
	return portInText.ReplaceAllStringFunc(text, func(s string) string {
		m := portInText.FindStringSubmatch(s)
		if here := r.ports[m[2]]; here != "" {
			return m[1] + here
		}
		return s
	})
}

func (r *reader) toPage(text string) string {
	for page, here := range r.ports {
		text = regexp.MustCompile(`\b`+here+`\b`).ReplaceAllString(text, page)
	}
	return killedJob.ReplaceAllString(strings.ReplaceAll(text, "\r", ""), "")
}

// newReader makes the folder: the repository's files, copies of Envoy's with other ports, and the programs with their
// default ports replaced.
func newReader(t *testing.T, page string) *reader {
	t.Helper()
	r := &reader{page: page, dir: t.TempDir(), ports: map[string]string{}}
	for _, port := range defaultPorts {
		r.ports[port] = freePort(t)
	}
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	link := func(from, to string) {
		if err := os.Symlink(filepath.Join(top, from), filepath.Join(r.dir, to)); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, text string, mode os.FileMode) {
		file := filepath.Join(r.dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"charts", "docs", "examples"} {
		link(name, name)
	}
	for _, pattern := range []string{"envoy/*.yaml", "envoy/xds/*.yaml"} {
		files, err := filepath.Glob(filepath.Join(top, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			write(strings.TrimPrefix(f, top), strings.ReplaceAll(r.toHere(string(text)), "0.0.0.0", "127.0.0.1"), 0o644)
		}
	}
	script := func(name, text string) { write(name, "#!/usr/bin/env bash\n"+text, 0o755) }
	bin := filepath.Join(top, "build")
	script("build/oncegate", fmt.Sprintf(`if [ "$1" = serve ] && [[ "$*" != *--listen* ]]; then set -- "$@" --listen 127.0.0.1:%s; fi
ONCEGATE_MANAGER_URL=${ONCEGATE_MANAGER_URL:-http://127.0.0.1:%[1]s} exec %s/oncegate "$@"
`, r.ports["8090"], bin))
	script("build/payments", fmt.Sprintf("exec %s/payments --listen 127.0.0.1:%s \"$@\"\n", bin, r.ports["9000"]))
	link("build/oncegate.wasm", "build/oncegate.wasm")
	link("build/python", "build/python")
	// What `make programs` built from the examples stands for go run, and what is built already for make.
	script("bin/go", fmt.Sprintf(`[ "$1" = run ] || { echo "go $*: not here"; exit 1; }
program=%s/examples/$(basename "$2"); shift 2
case $program in
*/worker) set -- --manager http://127.0.0.1:%[2]s "$@" ;;
*/submit) set -- --url http://127.0.0.1:%[2]s "$@" ;;
esac
exec $program "$@"
`, bin, r.ports["8090"]))
	script("bin/make", fmt.Sprintf(`for target; do [[ $target =~ ^(build|envoy)$ ]] || [ -e %s/"${target#build/}" ] || { echo "make $*: not here"; exit 1; }; done
`, bin))
	if err := os.Symlink("../build/oncegate", filepath.Join(r.dir, "bin", "oncegate")); err != nil {
		t.Fatal(err)
	}
	// Two Envoys on one machine would share the files of hot restart.
	script("bin/envoy", fmt.Sprintf("exec %s --disable-hot-restart --concurrency 2 -l warning \"$@\"\n", envoyOf(t, bin)))
	return r
}

// envoyOf returns the path of the Envoy that the pages run in.
func envoyOf(t *testing.T, bin string) string {
	t.Helper()
	proxy, err := stack.ChooseProxy(t.Context(), "envoy", bin)
	if err != nil {
		t.Fatal(err)
	}
	if proxy.Name() != "envoy" {
		t.Fatalf("the pages need an Envoy: %s", proxy)
	}
	return proxy.Envoy.Path
}

// make starts what the command `make run ...` does, and compares what it prints.
func (r *reader) make(t *testing.T, b block) {
	t.Helper()
	args := []string{"--dir", filepath.Join(r.dir, "run")}
	for name, port := range map[string]string{"manager": "8090", "manager-admin": "8091", "payments": "9000", "proxy": "10000", "proxy-admin": "10001"} {
		args = append(args, "--"+name+"-port", r.ports[port])
	}
	command, want, _ := strings.Cut(b.text, "\n")
	for _, setting := range strings.Fields(command)[3:] {
		name, value, _ := strings.Cut(setting, "=")
		args = append(args, "--"+strings.ToLower(name), value)
	}
	s := startSession(t, args...)
	compare(t, b, command, want, r.toPage(s.welcome))
}

// compare reports output that is not as a page says. "..." stands for any text, and alone on a line for any lines.
func compare(t *testing.T, b block, command, want, got string) {
	t.Helper()
	if want == "" {
		return
	}
	var pattern strings.Builder
	for line := range strings.SplitSeq(strings.TrimSpace(want), "\n") {
		if strings.TrimSpace(line) == "..." {
			pattern.WriteString(`(?:.*\n)*?`)
			continue
		}
		pattern.WriteString(strings.ReplaceAll(regexp.QuoteMeta(strings.TrimRight(line, " ")), `\.\.\.`, `.*`) + ` *\n`)
	}
	if !regexp.MustCompile(`^` + pattern.String() + `\n*$`).MatchString(strings.TrimLeft(strings.TrimRight(got, "\n")+"\n", "\n")) {
		t.Errorf("%s: %s\nprints\n%s\nthe page says\n%s", b, command, got, want)
	}
}

// step is a command, or a block of them, in a reader's terminal.
type step struct {
	b             block
	command, want string
}

// stepsOf divides a block: a console block has what each command prints.
func stepsOf(b block) (steps []step) {
	if !b.console {
		return []step{{b, b.text, ""}}
	}
	more := false
	for line := range strings.SplitSeq(b.text, "\n") {
		command, ok := strings.CutPrefix(line, "$ ")
		switch last := len(steps) - 1; {
		case ok:
			steps = append(steps, step{b, command, ""})
		case more:
			steps[last].command += "\n" + line
		default:
			steps[last].want += line + "\n"
		}
		more = (ok || more) && strings.HasSuffix(line, `\`)
	}
	return steps
}

var serverLine = regexp.MustCompile(`^\s*(?:(?:build/)?oncegate serve|build/payments|python3 service\.py|envoy -c|go run \./examples/(?:worker|grpc serve))\b`)

// serversBehind lets servers run in the background, as in a terminal of their own, and waits until each listens.
func (r *reader) serversBehind(text string) string {
	var out []string
	lines := strings.Split(strings.ReplaceAll(text, "\\\n", " "), "\n")
	for _, line := range lines {
		if !serverLine.MatchString(line) {
			out = append(out, line)
			continue
		}
		line, after, _ := strings.Cut(line, " &")
		out = append(out, line+" >>servers.log 2>&1 &"+after)
		port, probe := r.ports["8090"], "connects"
		switch words := strings.Fields(line); {
		case strings.Contains(line, "build/payments"), strings.Contains(line, "service.py"):
			port = r.ports["9000"]
		case strings.Contains(line, "envoy -c"):
			port = r.ports["10000"]
		case strings.Contains(line, "worker"):
			continue
		case strings.Contains(line, "grpc serve"):
			port = words[len(words)-1][strings.LastIndex(words[len(words)-1], ":")+1:]
		default:
			probe = "ready"
			if m := regexp.MustCompile(`--listen \S*:(\d+)`).FindStringSubmatch(line); m != nil {
				port = m[1]
			}
		}
		out = append(out, "await "+probe+" "+port)
	}
	return strings.Join(out, "\n")
}

// paste runs the steps in one shell, in the order of the page.
func (r *reader) paste(t *testing.T, steps []step) {
	t.Helper()
	script := &strings.Builder{}
	fmt.Fprintf(script, `cd %s; export PATH=$PWD/bin:$PATH TERM=dumb
await() { for ((i = 0; i < 2400; i++)); do "$@" 2>/dev/null && return 0; kill -0 $! || break; sleep 0.05; done; echo "not ready: $*"; return 1; }
connects() { (exec 3<>/dev/tcp/127.0.0.1/$1); }
ready() { curl -f -o /dev/null http://127.0.0.1:$1/readyz || curl -fk -o /dev/null https://127.0.0.1:$1/readyz; }
curl() { command curl -sS "$@"; } # as in a terminal, where it shows no progress
set -e
`, r.dir)
	fmt.Fprintln(script, r.serversBehind(before[r.page]))
	for i, s := range steps {
		fmt.Fprintf(script, "printf '\\n@@@%d\\n'\n%s\n", i, r.serversBehind(r.toHere(s.command)))
	}
	fmt.Fprintf(script, "printf '\\n@@@%d\\n'\n", len(steps))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := os.Create(filepath.Join(r.dir, "out.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	file := filepath.Join(r.dir, "session.sh")
	if err := os.WriteFile(file, []byte(script.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "bash", file)
	// Files, not pipes: servers in the background have them open as well.
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	if err == nil {
		err = cmd.Wait()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // the servers
	}
	text, readErr := os.ReadFile(out.Name())
	if err := errors.Join(readErr, ctx.Err()); err != nil {
		t.Error(err)
	}
	rest := text
	for i, s := range steps {
		_, from, begun := bytes.Cut(rest, fmt.Appendf(nil, "\n@@@%d\n", i))
		got, after, ended := bytes.Cut(from, fmt.Appendf(nil, "\n@@@%d\n", i+1))
		if !begun || !ended {
			servers, _ := os.ReadFile(filepath.Join(r.dir, "servers.log"))
			servers = servers[max(0, len(servers)-4000):]
			t.Fatalf("%s: %s\nfails (%v):\n%s\nservers:\n%s", s.b, s.command, err, from, servers)
		}
		compare(t, s.b, s.command, s.want, r.toPage(string(got)))
		rest = append(fmt.Appendf(nil, "\n@@@%d\n", i+1), after...)
	}
	if err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}

// TestPages pastes the command blocks of each page into a terminal, from top to bottom, with real processes, and compares what
// they print with the page.
func TestPages(t *testing.T) {
	for page, text := range pages(t) {
		var runs, blocks []block
		for _, b := range blocksOf(t, page, text) {
			switch {
			case b.skipped() != "":
			case strings.HasPrefix(b.text, "$ make run"):
				runs = append(runs, b)
			default:
				blocks = append(blocks, b)
			}
		}
		if len(blocks) == 0 && len(runs) == 0 {
			continue
		}
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			if page != "README.md" {
				deep.Only(t)
			}
			r := newReader(t, page)
			for _, b := range runs {
				r.make(t, b)
			}
			var steps []step
			for _, b := range blocks {
				steps = append(steps, stepsOf(prepared(t, b))...)
			}
			r.paste(t, steps)
		})
	}
}
