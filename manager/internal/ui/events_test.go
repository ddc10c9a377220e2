package ui

import (
	"bufio"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// The server's time to write an answer is for pages; each event of a stream has its own.
func TestLivePartsFollow(t *testing.T) {
	s := newSite(t, siteOptions{writeTimeout: time.Second})
	req, err := http.NewRequestWithContext(t.Context(), "GET", s.url+"/ui/events/overview", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if ct := resp.Header.Get("Content-Type"); ct != "text/event-stream" {
		t.Errorf("content type %q", ct)
	}
	lines := bufio.NewScanner(resp.Body)
	seen := func(want string) {
		t.Helper()
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), "data: ") && strings.Contains(lines.Text(), want) {
				return
			}
		}
		t.Fatalf("the stream ended without %q: %v", want, lines.Err())
	}
	seen("<dt>Queued</dt><dd>0</dd>")
	if _, err := s.queue.Enqueue(t.Context(), jobs.Submission{Function: "f"}); err != nil {
		t.Fatal(err)
	}
	seen("<dt>Queued</dt><dd>1</dd>")
}

func TestUnknownLivePart(t *testing.T) {
	if a := newSite(t, siteOptions{}).get("/ui/events/nothing"); a.status != 404 {
		t.Errorf("status %d", a.status)
	}
}

func TestViewersAreBounded(t *testing.T) {
	s := newSite(t, siteOptions{})
	for range maxViewers {
		s.ui.feeds.viewers <- struct{}{}
	}
	if a := s.get("/ui/events/overview"); a.status != 503 || a.header.Get("Retry-After") == "" {
		t.Errorf("status %d", a.status)
	}
}

func TestStreamsEndWithTheSession(t *testing.T) {
	s := newSite(t, siteOptions{tokens: true})
	s.login(operatorToken)
	req, err := http.NewRequestWithContext(t.Context(), "GET", s.url+"/ui/events/overview", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	s.now.Add(sessionLength + 1)
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
	}
}
