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
	cmd := exec.Command(program, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	for end := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		if c, err := dial(t.Context(), "", ""); err == nil {
			_ = c.Close()
			break
		}
		select {
		case <-ended:
			t.Fatalf("%s: %s", program, out.String())
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not listen within %v", program, limit)
		}
	}
	transport := &http.Transport{DialContext: dial, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) { // the signature is of the client's host
			r.SetURL(&url.URL{Scheme: "http", Host: r.In.Host})
			r.Out.Host = r.In.Host
		},
	}
}
