//go:build go1.25

package client

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// slowBody is the body of an answer that brings one byte in each pause.
type slowBody struct {
	ctx   context.Context
	text  *strings.Reader
	pause time.Duration
}

func (b *slowBody) Read(p []byte) (int, error) {
	select {
	case <-time.After(b.pause):
		return b.text.Read(p[:1])
	case <-b.ctx.Done():
		return 0, context.Cause(b.ctx)
	}
}

func (b *slowBody) Close() error { return nil }

type slowLine struct{ pause time.Duration }

func (l slowLine) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Request: r, ContentLength: -1,
		Body: &slowBody{r.Context(), strings.NewReader(`{"jobs":[]}`), l.pause},
	}, nil
}

// TestTimeoutGoesByProgress: an answer that keeps coming is read to its end.
func TestTimeoutGoesByProgress(t *testing.T) {
	for pause, want := range map[time.Duration]error{9 * time.Second: nil, 11 * time.Second: context.DeadlineExceeded} {
		synctest.Test(t, func(t *testing.T) {
			c, err := New(Options{URL: "http://manager", HTTP: &http.Client{Transport: slowLine{pause}}, Timeout: 10 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Claim(t.Context(), ClaimRequest{Worker: "w"}); !errors.Is(err, want) {
				t.Errorf("a byte in %v: %v, want %v", pause, err, want)
			}
		})
	}
}
