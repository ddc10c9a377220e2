package objecttest

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// startGateway starts a versitygw, an S3 server with a directory behind it.
func startGateway(t testing.TB, program string) http.Handler {
	dir := shortDir(t)
	socket := filepath.Join(dir, "socket")
	if err := os.MkdirAll(filepath.Join(dir, "objects", Bucket), 0o700); err != nil {
		t.Fatal(err)
	}
	return startServer(t, "unix", socket, program, "--quiet", "--port", socket, "--access", accessKey, "--secret", secretKey,
		"posix", filepath.Join(dir, "objects")) // with metadata in sidecar files it loses updates
}

// startFakeGCS starts a fake-gcs-server, which keeps objects in memory.
func startFakeGCS(t testing.TB, program string) http.Handler {
	socket := filepath.Join(shortDir(t), "socket")
	return startServer(t, "unix", socket, program, socket, Bucket)
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
	p.await(t, func() bool {
		c, err := net.Dial(network, address)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return forward(t, network, address)
}

// process is a program that ends with the test, and what it wrote.
type process struct {
	program string
	ended   chan struct{}
	mu      sync.Mutex
	out     bytes.Buffer
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

func (p *process) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

func launch(t testing.TB, env []string, program string, args ...string) *process {
	p := &process{program: program, ended: make(chan struct{})}
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = p, p
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.ended
	})
	return p
}

// startLimit is generous: Azurite reads hundreds of files to start, and a busy machine takes minutes for that.
const startLimit = 10 * time.Minute

// await waits until the program is ready.
func (p *process) await(t testing.TB, ready func() bool) {
	for end := time.Now().Add(startLimit); !ready(); time.Sleep(5 * time.Millisecond) {
		select {
		case <-p.ended:
			t.Fatalf("%s: %s", p.program, p)
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not listen within %v: %s", p.program, startLimit, p)
		}
	}
}

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
