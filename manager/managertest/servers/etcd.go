package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Etcd starts a cluster of one member for the test, see StartEtcd.
func Etcd(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s, err := StartEtcd(tb.Context(), args...)
	return forTest(tb, s, err)
}

// StartEtcd starts an etcd of one member, on an address of its own below 127.0.0.0/8; args are appended to its command
// line. The caller must call Close.
func StartEtcd(ctx context.Context, args ...string) (*Server, error) {
	members, err := StartEtcdMembers(ctx, 1, args...)
	if err != nil {
		return nil, err
	}
	return members[0], nil
}

// StartEtcdMembers starts a cluster. The URL of each server is that of its member. The caller must call Close of each.
func StartEtcdMembers(ctx context.Context, n int, args ...string) ([]*Server, error) {
	return startEtcd(ctx, n, args, func(i int, listen string) (string, error) { return listen, nil })
}

// StartEtcdBehind is StartEtcdMembers with something between the members. between gets the address at which member
// i listens for the others, and returns the address at which they are to reach it.
func StartEtcdBehind(ctx context.Context, n int, between func(i int, listen string) (string, error), args ...string) ([]*Server, error) {
	return startEtcd(ctx, n, args, between)
}

// EtcdTLS starts a cluster of one member for the test that takes only connections with TLS and a client's certificate.
// own makes the member's certificate, for the IP address that it gets, and returns the arguments that name the files.
func EtcdTLS(tb testing.TB, own func(ip string) []string) *Server {
	tb.Helper()
	var args []string
	members, err := startEtcd(tb.Context(), 1, nil, func(_ int, listen string) (string, error) {
		ip, _, err := net.SplitHostPort(listen)
		args = own(ip)
		return listen, err
	}, func(m *Server) {
		plain := m.URL
		m.URL = strings.Replace(plain, "http://", "https://", 1)
		for i, a := range m.args {
			if a == plain {
				m.args[i] = m.URL
			}
		}
		metrics := strings.Replace(plain, ":2379", ":2381", 1) // health without TLS
		m.args = append(append(m.args, "--listen-metrics-urls", metrics), args...)
		m.ready = func(ctx context.Context) error { return etcdHealthy(ctx, metrics) }
	})
	if err != nil {
		tb.Fatal(err)
	}
	return forTest(tb, members[0], nil)
}

func startEtcd(ctx context.Context, n int, args []string, between func(int, string) (string, error), change ...func(*Server)) ([]*Server, error) {
	path, err := exec.LookPath("etcd")
	if err != nil {
		return nil, fmt.Errorf("etcd is not installed; `make test` installs it: %w", err)
	}
	members := make([]*Server, n)
	peers, cluster := make([]string, n), make([]string, n)
	advertised := make([]string, n)
	for i := range members {
		ip, err := loopback()
		if err != nil {
			return nil, err
		}
		peers[i] = ip + ":2380"
		if advertised[i], err = between(i, peers[i]); err != nil {
			return nil, err
		}
		members[i] = &Server{URL: "http://" + ip + ":2379", path: path}
		cluster[i] = fmt.Sprintf("m%d=http://%s", i, advertised[i])
	}
	for _, m := range members {
		if m.dir, err = tempDir(); err != nil {
			return nil, err
		}
	}
	started := make(chan error, n)
	for i, m := range members {
		m.args = append([]string{"--name", fmt.Sprint("m", i), "--data-dir", filepath.Join(m.dir, "data"),
			"--listen-client-urls", m.URL, "--advertise-client-urls", m.URL,
			"--listen-peer-urls", "http://" + peers[i], "--initial-advertise-peer-urls", "http://" + advertised[i],
			"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-token", members[0].URL,
			"--log-level", "error", "--logger", "zap"}, args...)
		m.ready = func(ctx context.Context) error { return etcdHealthy(ctx, m.URL) }
		for _, f := range change {
			f(m)
		}
		go func() { started <- m.Start(ctx) }()
	}
	var errs []error
	for range members {
		errs = append(errs, <-started)
	}
	if err := errors.Join(errs...); err != nil {
		for _, m := range members {
			m.Close()
		}
		return nil, err
	}
	return members, nil
}

func etcdHealthy(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if err == nil && (resp.StatusCode != http.StatusOK || !strings.Contains(string(body), `"true"`)) {
		err = fmt.Errorf("health: %s", body)
	}
	return err
}

// loopback returns an address of this machine that nobody else uses, so that its ports are free.
func loopback() (string, error) {
	for range 100 {
		ip := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
		l, err := net.Listen("tcp", ip+":2379")
		if err != nil {
			continue
		}
		_ = l.Close()
		return ip, nil
	}
	return "", os.ErrNotExist
}
