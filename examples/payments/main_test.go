package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/test/bufconn"
)

// output collects what run writes, from several goroutines.
type output struct {
	mu sync.Mutex
	b  strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func TestRunServesUntilStopped(t *testing.T) {
	defer goleak.VerifyNone(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	listening := make(chan net.Addr, 1)
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"--listen", "127.0.0.1:0"}, io.Discard, func(a net.Addr) { listening <- a })
	}()
	url := "http://" + (<-listening).String()

	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	resp, err := client.Get(url + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()

	// A request that is under way when the signal comes is still answered.
	answered := make(chan error, 1)
	status := 0
	go func() {
		req, err := http.NewRequest(http.MethodPost, url+"/payments", strings.NewReader("{}"))
		if err != nil {
			answered <- err
			return
		}
		req.Header.Set("x-demo-delay-ms", "300")
		resp, err := client.Do(req)
		if err == nil {
			status = resp.StatusCode
			resp.Body.Close()
		}
		answered <- err
	}()
	for executed := ""; !strings.Contains(executed, `"total":1`); {
		resp, err := client.Get(url + "/executions")
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		executed = string(b)
	}
	stop()
	if err := <-answered; err != nil || status != http.StatusCreated {
		t.Errorf("the request under way at the stop: status %d, %v; want 201", status, err)
	}
	if got := <-code; got != 0 {
		t.Errorf("exit code %d, want 0", got)
	}
}

func TestRunRefusesBadCommandLines(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"unknown flag", []string{"--port", "9"}, "port"},
		{"argument", []string{"9000"}, `unexpected argument "9000"`},
		{"no address", []string{"--listen", "nowhere"}, `--listen "nowhere"`},
		{"port taken", []string{"--listen", taken.Addr().String()}, "address already in use"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stderr output
			if code := run(t.Context(), tt.args, &stderr, nil); code != 2 {
				t.Errorf("exit code %d, want 2", code)
			}
			if !strings.Contains(stderr.String(), tt.want) {
				t.Errorf("stderr %q, want it to contain %q", stderr.String(), tt.want)
			}
		})
	}
}

// A proxy opens connections ahead of its requests, and closes those that it does not need after 30 s.
func TestNewConnectionMayWaitForItsFirstRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		l := bufconn.Listen(64 << 10)
		served := make(chan error, 1)
		go func() { served <- serve(ctx, l) }()
		c, err := l.DialContext(ctx)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(31 * time.Second) // by the bubble's clock
		if _, err := io.WriteString(c, "POST /payments HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second) // until the body comes
		if _, err := io.WriteString(c, "{}"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusCreated {
			t.Errorf("status %d", resp.StatusCode)
		}
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}
