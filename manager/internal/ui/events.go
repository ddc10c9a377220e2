package ui

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
)

// lives are the data of the live parts of pages, by name. The part is the template "NAME-live" of
// the page that is named here.
var lives = map[string]struct {
	page string
	data func(*UI, context.Context) (any, error)
}{
	"ledger":   {"ledger", func(u *UI, ctx context.Context) (any, error) { return u.ledgerWhole(ctx) }},
	"overview": {"overview", func(u *UI, ctx context.Context) (any, error) { return u.overview(ctx) }},
	"system":   {"system", func(u *UI, ctx context.Context) (any, error) { return u.system(ctx) }},
	"jobs":     {"jobs", func(u *UI, ctx context.Context) (any, error) { return u.depth(ctx) }},
}

// livePage handles a page that is all live.
func livePage[T any](name, title string, data func(*UI, context.Context) (T, error)) func(*UI, *visit) error {
	return func(u *UI, v *visit) error {
		d, err := data(u, v.ctx())
		if err != nil {
			return err
		}
		return v.render(name, title, d)
	}
}

// liveEvery is how often a live part is rendered at most, however many look at it, maxViewers how
// many may look at the same time, and viewerPatience what a viewer has to take an event.
const (
	liveEvery      = 2 * time.Second
	maxViewers     = 100
	viewerPatience = 30 * time.Second
)

// feeds share what is rendered among the viewers.
type feeds struct {
	parts   map[string]*part
	viewers chan struct{}
}

type part struct {
	mu   sync.Mutex
	html []byte
	err  error
	at   time.Time
}

func (f *feeds) init() {
	f.viewers = make(chan struct{}, maxViewers)
	f.parts = make(map[string]*part)
	for name := range lives {
		f.parts[name] = new(part)
	}
}

// live returns a part that is at most liveEvery old.
func (u *UI) live(name string) ([]byte, error) {
	p := u.feeds.parts[name]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at.IsZero() || time.Since(p.at) >= liveEvery {
		// The result is everyone's, so no single viewer's leaving may end the work.
		ctx, cancel := context.WithTimeout(u.base, workTimeout)
		defer cancel()
		var b bytes.Buffer
		data, err := lives[name].data(u, ctx)
		if err == nil {
			err = templates[lives[name].page].ExecuteTemplate(&b, name+"-live", data)
		}
		p.html, p.err, p.at = b.Bytes(), err, time.Now()
	}
	return p.html, p.err
}

// events streams a live part as server-sent events: whenever it changes, and a comment otherwise.
func (u *UI) events(v *visit) error {
	name := v.r.PathValue("name")
	if _, ok := lives[name]; !ok {
		return u.notFound(v)
	}
	select {
	case u.feeds.viewers <- struct{}{}:
		defer func() { <-u.feeds.viewers }()
	default:
		return &httpd.Refusal{P: api.Problem{Status: 503, Code: api.CodeOverloaded, Title: "Too many viewers", Detail: "the page stays as it is until it is loaded again", RetryAfterSeconds: 30}}
	}
	c := http.NewResponseController(v.w)
	_ = c.SetReadDeadline(time.Time{}) // which would end the stream, too
	// The answer's end is written as well, to a viewer that may take nothing.
	defer func() { _ = c.SetWriteDeadline(time.Now().Add(viewerPatience)) }()
	if v.r.ProtoMajor == 1 {
		v.w.Header().Set("Connection", "close") // or the deadline would be the next request's
	}
	v.w.Header().Set("Content-Type", "text/event-stream")
	v.w.Header().Set("X-Accel-Buffering", "no") // asks proxies to pass events on at once
	v.w.WriteHeader(http.StatusOK)
	var last []byte
	tick := time.NewTicker(liveEvery)
	defer tick.Stop()
	for {
		now, err := u.live(name)
		// A viewer that takes nothing, for example a laptop that sleeps, must not keep its slot.
		_ = c.SetWriteDeadline(time.Now().Add(viewerPatience))
		switch {
		case err != nil && !errors.Is(err, context.Canceled):
			_, err = v.w.Write([]byte("event: trouble\ndata: the manager did not answer\n\n"))
			last = nil
		case bytes.Equal(now, last):
			_, err = v.w.Write([]byte(": nothing new\n\n"))
		default:
			_, err = v.w.Write([]byte("data: " + strings.ReplaceAll(string(now), "\n", "\ndata: ") + "\n\n"))
			last = now
		}
		if err == nil {
			err = c.Flush()
		}
		if err != nil {
			return nil // the viewer has left
		}
		select {
		case <-v.ctx().Done():
			return nil
		case <-tick.C:
		}
		if !u.identify(v) {
			return nil
		}
	}
}
