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

// GatewayEnv names a versitygw, an S3 server with a directory behind it. Where it is set, NewServer
// starts one in a process of its own in place of the server in the test's process.
const GatewayEnv = "S3_GATEWAY"

// startGateway starts a versitygw, which ends with the test, and returns a handler that asks it.
func startGateway(t testing.TB, program string) http.Handler {
	dir, err := os.MkdirTemp("", "s3") // short: the name of a socket may have 100 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "socket")
	if err := os.MkdirAll(filepath.Join(dir, "objects", Bucket), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--quiet", "--port", socket, "--access", accessKey, "--secret", secretKey,
		"posix", filepath.Join(dir, "objects")) // with metadata in sidecar files it loses updates
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
		return new(net.Dialer).DialContext(ctx, "unix", socket)
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
