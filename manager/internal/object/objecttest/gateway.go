package objecttest

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// startGateway starts a versitygw, an S3 server that keeps objects in a directory.
func startGateway(t testing.TB, program string) (http.Handler, string) {
	dir := shortDir(t)
	socket := filepath.Join(dir, "socket")
	if err := os.MkdirAll(filepath.Join(dir, "objects", Bucket), 0o700); err != nil {
		t.Fatal(err)
	}
	return startServer(t, "unix", socket, program, "--quiet", "--port", socket, "--access", accessKey, "--secret", secretKey,
		"posix", filepath.Join(dir, "objects")), accessKey // with metadata in sidecar files it loses updates
}

// startFakeGCS starts a fake-gcs-server, which keeps objects in memory.
func startFakeGCS(t testing.TB, program string) (http.Handler, string) {
	socket := filepath.Join(shortDir(t), "socket")
	return startServer(t, "unix", socket, program, socket, Bucket), ""
}

// shortDir is a directory for a socket, whose name may have 100 bytes.
func shortDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "object")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// startServer starts a program that listens at an address. It ends with the test. The handler asks it.
func startServer(t testing.TB, network, address, program string, args ...string) http.Handler {
	p := launch(t, nil, program, args...)
	t.Cleanup(func() { _ = p.life.Close() })
	p.await(t, func() bool {
		c, err := net.Dial(network, address)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return forward(t, network, address)
}

// process is a program that ends with this process, however that ends, and what it wrote.
type process struct {
	program, output string
	life            *os.File // while this process has it open, the program runs
}

// whileOpen runs a program until its standard input ends, and then removes its directory. The program's end is its last line.
const whileOpen = `dir=$1; shift
exec 3<&0
"$@" </dev/null 3<&- &
program=$!
{ cat <&3 >/dev/null; kill -9 $program; rm -rf "$dir"; } &
exec 3<&-
wait $program
echo "it ended with $?"`

func launch(t testing.TB, env []string, program string, args ...string) *process {
	dir, err := os.MkdirTemp("", "object")
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(filepath.Join(dir, "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, life, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	cmd := exec.Command("sh", append([]string{"-c", whileOpen, "sh", dir, program}, args...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return &process{program, out.Name(), life}
}

func (p *process) String() string {
	b, err := os.ReadFile(p.output)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// await waits until the program is ready.
func (p *process) await(t testing.TB, ready func() bool) {
	for end := time.Now().Add(startLimit); !ready(); time.Sleep(5 * time.Millisecond) {
		if out := p.String(); strings.Contains(out, "it ended with ") || time.Now().After(end) {
			t.Fatalf("%s does not listen within %v: %s", p.program, startLimit, out)
		}
	}
}

// startLimit is generous: a busy machine takes minutes to start what a quiet one starts in a second.
const startLimit = 10 * time.Minute

// forward asks the server at an address.
func forward(t testing.TB, network, address string) http.Handler {
	transport := &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) { // the signature is of the client's host
			r.SetURL(&url.URL{Scheme: "http", Host: r.In.Host})
			r.Out.Host = r.In.Host
		},
	}
}
