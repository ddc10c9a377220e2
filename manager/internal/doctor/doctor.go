// Package doctor looks at a running deployment and says what is wrong with it and what to do. It only reads: it calls
// the managers' API and metrics, and Envoy's admin listener. Only a Probe makes the upstream do something.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"time"
	"unicode"
)

// Level says how bad a finding is.
type Level string

// A finding with OK needs nothing. Warn is a risk, or something that could not be judged. Fail means that requests
// fail, or that work may run twice.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "fail"
)

// Finding is the result of one check.
type Finding struct {
	Level Level `json:"level"`
	// Check names what was looked at, such as "manager: window".
	Check string `json:"check"`
	// Found says what is there.
	Found string `json:"found"`
	// Do says what to do; empty for OK.
	Do string `json:"do,omitempty"`
}

// Target is what to look at.
type Target struct {
	// Manager is the base URL of the manager's API listener.
	Manager string
	// Token is sent to the manager; empty: none.
	Token string
	// Metrics is the base URL of the manager's admin listener; empty: its metrics are not read.
	Metrics string
	// Envoy is the base URL of Envoy's admin listener; empty: Envoy is not looked at.
	Envoy string
	// Explain returns a gate's configuration with every field spelled out, as "protocol" and the defaults set them. nil, or an
	// error of it: only the fields that are given count.
	Explain func(config []byte) ([]byte, error)
	// Client makes all calls. It must have a time limit.
	Client *http.Client
	// Sample is how long the rate of new keys is measured.
	Sample time.Duration
	// Probe is a request to send through the gate.
	Probe Probe
}

// maxBody bounds what is read of one answer. The configuration of an Envoy with thousands of routes is some megabytes.
const maxBody = 256 << 20

// Run makes all checks. It returns early with what it has when ctx ends.
func Run(ctx context.Context, t Target) []Finding {
	var all report
	var gates []gate
	if t.Envoy != "" {
		gates = t.envoy(ctx, &all)
	}
	t.manager(ctx, &all, gates)
	t.probe(ctx, &all, gates)
	return all.findings
}

// report collects findings.
type report struct{ findings []Finding }

func (r *report) ok(check, found string, args ...any) {
	r.findings = append(r.findings, Finding{Level: OK, Check: check, Found: fmt.Sprintf(found, args...)})
}

func (r *report) warn(check, found, do string) {
	r.findings = append(r.findings, Finding{Level: Warn, Check: check, Found: found, Do: do})
}

func (r *report) fail(check, found, do string) {
	r.findings = append(r.findings, Finding{Level: Fail, Check: check, Found: found, Do: do})
}

// okUnless reports that a check found nothing, unless there are more findings than before.
func (r *report) okUnless(before int, check, found string, args ...any) {
	if len(r.findings) == before {
		r.ok(check, found, args...)
	}
}

// answer is what an HTTP call returned.
type answer struct {
	status int
	header http.Header
	body   []byte
	took   time.Duration
}

// request is an HTTP call.
type request struct {
	method, url, token string // method "": GET
	body               string // JSON
	// fresh: on a connection of its own.
	fresh  bool
	header http.Header // further ones
	// follow no redirect: it is the answer.
	noRedirect bool
}

func (t Target) get(ctx context.Context, url, token string) (answer, error) {
	return t.call(ctx, request{url: url, token: token})
}

func (t Target) call(ctx context.Context, q request) (answer, error) {
	url := q.url
	req, err := http.NewRequestWithContext(ctx, q.method, url, strings.NewReader(q.body))
	if err != nil {
		return answer{}, err
	}
	req.Close = q.fresh
	maps.Copy(req.Header, q.header)
	req.Host = q.header.Get("Host") // empty: that of the URL
	client := *t.Client
	if q.noRedirect {
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	if q.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if q.token != "" {
		req.Header.Set("Authorization", "Bearer "+q.token)
	}
	begin := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err == nil && len(body) > maxBody {
		err = fmt.Errorf("%s: the answer is larger than %d bytes", url, maxBody)
	}
	return answer{status: resp.StatusCode, header: resp.Header, body: body, took: time.Since(begin)}, err
}

// getOK is get for answers that must have the status 200.
func (t Target) getOK(ctx context.Context, url string) ([]byte, error) {
	a, err := t.get(ctx, url, "")
	if err == nil && a.status != http.StatusOK {
		err = fmt.Errorf("%s: status %d", url, a.status)
	}
	return a.body, err
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return errors.New("interrupted")
	}
}

// many is a number of things.
func many(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// oneLine shortens a text of strangers for a finding. Control characters could rewrite what a terminal shows.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 200 {
		text = text[:200] + "..."
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, strings.ToValidUTF8(text, "?"))
}
