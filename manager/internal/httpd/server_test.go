package httpd

import (
	"context"
	"testing"
	"time"
)

func TestRoutesAreChecked(t *testing.T) {
	ok := func(*Request, *Response) error { return nil }
	for what, routes := range map[string][]Route{
		"no handler": {{Method: "GET", Path: "/x"}},
		"no method":  {{Path: "/x", Roles: Plain, Handle: ok}},
		"no roles":   {{Method: "GET", Path: "/x", Handle: ok}},
		"not alone":  {{Method: "GET", Path: "/x", Roles: Anyone | Admin, Handle: ok}},
		"no slash":   {{Method: "GET", Path: "x", Roles: Plain, Handle: ok}},
		"twice":      {{Method: "GET", Path: "/x", Roles: Plain, Handle: ok}, {Method: "GET", Path: "/x", Roles: Plain, Handle: ok}},
		"parameters": {{Method: "GET", Path: "/{a}/{b}/{c}/{d}/{e}", Roles: Plain, Handle: ok}},
	} {
		if _, err := New(Options{Version: "v"}, routes); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
	if _, err := New(Options{}); err == nil {
		t.Error("a server without a version was accepted")
	}
}

// TestDeadlinesAreShared: requests of one second share a context, later ones
// get another, and every one lasts at least the time that was asked for.
func TestDeadlinesAreShared(t *testing.T) {
	base, cancel := context.WithCancel(context.Background())
	d := deadlines{base: base, timeout: time.Minute}
	now := time.Now()
	a, b, c := d.context(now), d.context(now.Add(999*time.Millisecond)), d.context(now.Add(time.Second))
	if a != b || b == c {
		t.Error("contexts are not shared as they should be")
	}
	if until, ok := a.Deadline(); !ok || until.Before(now.Add(time.Minute+time.Second)) {
		t.Errorf("ends at %v", until)
	}
	cancel()
	if a.Err() == nil || c.Err() == nil {
		t.Error("the end of all work did not reach them")
	}
}
