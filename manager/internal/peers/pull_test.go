package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/feed"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is a data centre that answers as a manager does.
type site struct {
	*ledger.Ledger
	*feed.Feed
	st   *mem.Store
	name string
	// spoil, when set, may answer in the place of the site.
	spoil atomic.Pointer[func(w http.ResponseWriter, r *http.Request) bool]
	srv   *httptest.Server
}

func newSite(t *testing.T, name string, o ledger.Options) *site {
	t.Helper()
	s := &site{st: mem.New(mem.Options{}), name: name}
	t.Cleanup(func() { _ = s.st.Close() })
	o.Origin = name
	var err error
	if s.Ledger, err = ledger.New(s.st, o); err == nil {
		s.Feed = feed.New(s.st, s.Ledger, feed.Options{})
		err = s.Open(t.Context(), "")
	}
	if err != nil {
		t.Fatal(err)
	}
	s.srv = httptest.NewServer(s)
	t.Cleanup(s.srv.Close)
	return s
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f := s.spoil.Load(); f == nil || !(*f)(w, r) {
		s.answer(w, r)
	}
}

func (s *site) answer(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	var body []byte
	var err error
	if r.URL.Path == "/v1/ledger/digests" {
		var d []feed.Digest
		var span int64
		if d, span, err = s.Digests(r.Context(), q.Get("origin"), 0); err == nil {
			body = AppendDigests(nil, s.name, span, d)
		}
	} else {
		var f feed.Page
		_ = s.Publish(r.Context())
		if from := q.Get("from_ms"); from != "" {
			a, _ := strconv.ParseInt(from, 10, 64)
			b, _ := strconv.ParseInt(q.Get("to_ms"), 10, 64)
			f, err = s.Outcomes(r.Context(), q.Get("origin"), a, b, q.Get("after"), 7)
		} else {
			f, err = s.Changes(r.Context(), q.Get("origin"), q.Get("after"), 7)
		}
		if err == nil {
			body, err = AppendFeed(nil, &f)
		}
		if len(f.Changes) == 0 {
			time.Sleep(time.Millisecond) // in the place of waiting
		}
	}
	switch {
	case errors.Is(err, feed.ErrCursorGone):
		w.WriteHeader(410)
	case err != nil:
		w.WriteHeader(500)
	}
	_, _ = w.Write(body)
}

func (s *site) run(t *testing.T, key string) {
	t.Helper()
	if _, err := s.Reserve(t.Context(), &api.ReserveRequest{Key: key, Token: s.name + key}, nil); err != nil {
		t.Fatal(err)
	}
	r := api.Result{Status: 200, Body: []byte(s.name)}
	if err := s.Commit(t.Context(), &ledger.FinishRequest{Key: key, Token: s.name + key, Result: r.AppendRaw(nil)}); err != nil {
		t.Fatal(err)
	}
}

// follow pulls from one site into another until the test ends.
func follow(t *testing.T, to, from *site, token string) *Puller {
	t.Helper()
	c := Config{Origin: to.name, Peers: []Peer{{from.name, from.srv.URL}}}
	if token != "" {
		c.TokenFile = filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(c.TokenFile, []byte("# comment\n"+from.name+" "+token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n, err := NewNetwork(c)
	if err != nil {
		t.Fatal(err)
	}
	p := New(Options{Network: n, Feed: to.Feed, Store: to.st, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), CheckEvery: 20 * time.Millisecond})
	t.Cleanup(run(t, p))
	return p
}

// followWith pulls until stop is called.
func followWith(t *testing.T, to, from *site, l *lists) (stop func()) {
	t.Helper()
	n, err := NewNetwork(Config{Origin: to.name, Peers: []Peer{{from.name, from.srv.URL}}})
	if err != nil {
		t.Fatal(err)
	}
	return run(t, New(Options{Network: n, Feed: to.Feed, Store: to.st, Log: slog.New(slog.DiscardHandler), Lists: l}))
}

func run(t *testing.T, p *Puller) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { p.Run(ctx) })
	return func() {
		cancel()
		done.Wait()
		p.opts.Network.Close()
	}
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// has counts what a site holds of an origin.
func (s *site) has(t *testing.T, origin string) (n int) {
	t.Helper()
	digests, _, err := s.Digests(t.Context(), origin, 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range digests {
		n += d.Outcomes
	}
	return n
}

// TestLostPagesAreRepaired: pages of the feed arrive empty, and their cursor moves.
func TestLostPagesAreRepaired(t *testing.T) {
	a, b := newSite(t, "dc1", ledger.Options{}), newSite(t, "dc2", ledger.Options{})
	lose := func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/ledger/changes" || r.URL.Query().Get("from_ms") != "" {
			return false
		}
		_ = a.Publish(r.Context())
		f, err := a.Changes(r.Context(), "dc1", r.URL.Query().Get("after"), 7)
		if err != nil {
			return false
		}
		f.Changes = nil
		body, _ := AppendFeed(nil, &f)
		_, _ = w.Write(body)
		return true
	}
	a.spoil.Store(&lose)
	for i := range 30 {
		a.run(t, fmt.Sprint("k", i))
	}
	p := follow(t, b, a, "")
	eventually(t, "all is repaired", func() bool { return b.has(t, "dc1") == 30 })
	eventually(t, "that is counted", func() bool { return p.Status()[0].Repaired == 30 })
}

// noteAttempt notes that an attempt has a key at its home.
func (s *site) noteAttempt(t *testing.T, home *site, key, token string) {
	t.Helper()
	if err := s.Follow(t.Context(), &api.ReserveRequest{Key: key, Token: token}, home.name, ledger.Seen{}); err != nil {
		t.Fatal(err)
	}
}

// attempt is whose attempt of a key a site knows of, and its state.
func (s *site) attempt(t *testing.T, key string) string {
	t.Helper()
	e, err := s.Get(t.Context(), "", key)
	if err != nil && !errors.Is(err, ledger.ErrNotFound) {
		t.Fatal(err)
	}
	return e.State.String() + " " + e.Home
}

// TestNotesHideNoLaterOutcome: an attempt that is noted here has lost its key at the home, where another one then ran. The
// feed brings that outcome, or comparing does where the feed lost it. Neither waits until the note is over.
func TestNotesHideNoLaterOutcome(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint("lost=", lost), func(t *testing.T) {
			a, b := newSite(t, "dc1", ledger.Options{}), newSite(t, "dc2", ledger.Options{})
			var failed atomic.Int32
			spoil := func(w http.ResponseWriter, r *http.Request) bool {
				span := r.URL.Query().Get("from_ms") != ""
				switch {
				case span && failed.Add(1) < 3: // the question is repeated until it is answered
					w.WriteHeader(500)
				case !span && lost && r.URL.Path == "/v1/ledger/changes":
					_ = a.Publish(r.Context())
					f, err := a.Changes(r.Context(), "dc1", r.URL.Query().Get("after"), 7)
					f.Changes = nil
					if err != nil {
						return false
					}
					body, _ := AppendFeed(nil, &f)
					_, _ = w.Write(body)
				default:
					return false
				}
				return true
			}
			a.spoil.Store(&spoil)
			b.noteAttempt(t, a, "k", "gone")
			a.run(t, "k")
			a.run(t, "other")
			p := follow(t, b, a, "")
			eventually(t, "the outcome is here", func() bool { return b.has(t, "dc1") == 2 })
			if got := b.attempt(t, "k"); got != "committed " {
				t.Errorf("the key is %q", got)
			}
			eventually(t, "the feed continues", func() bool { s := p.Status()[0]; return s.Error == "" && s.LagEntries == 0 })
			if lost {
				eventually(t, "both count as repaired", func() bool { return p.Status()[0].Repaired == 2 })
			} else if n := p.Status()[0].Repaired; n != 0 {
				t.Errorf("%d outcomes count as repaired", n)
			}
		})
	}
}

// TestOldOutcomesEndNoNote: the home read an outcome before it gave the key again, and its page arrives after that.
func TestOldOutcomesEndNoNote(t *testing.T) {
	a, b := newSite(t, "dc1", ledger.Options{}), newSite(t, "dc2", ledger.Options{})
	a.run(t, "k")
	a.run(t, "other")
	_ = a.Publish(t.Context())
	f, err := a.Changes(t.Context(), "dc1", "", 7)
	if err != nil || len(f.Changes) != 2 {
		t.Fatal(f, err)
	}
	page, err := AppendFeed(nil, &f)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Delete(t.Context(), "", "k"); err != nil { // as if its time were over
		t.Fatal(err)
	}
	old := func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/ledger/changes" || r.URL.Query().Get("from_ms") != "" || r.URL.Query().Get("after") != "" {
			return false
		}
		_, _ = w.Write(page)
		return true
	}
	a.spoil.Store(&old)
	b.noteAttempt(t, a, "k", "new")
	p := follow(t, b, a, "")
	eventually(t, "the other outcome is here, and the feed continues", func() bool {
		return b.has(t, "dc1") == 1 && p.Status()[0].Error == "" && b.OriginStats().Deferred > 0
	})
	a.run(t, "third")
	eventually(t, "the third is here", func() bool { return b.has(t, "dc1") == 2 })
	if got := b.attempt(t, "k"); got != "pending dc1" {
		t.Errorf("the key is %q", got)
	}
}

// TestOnlyRepairsAreCounted: outcomes that arrive by the feed while a span is repaired are no repairs.
func TestOnlyRepairsAreCounted(t *testing.T) {
	a, b := newSite(t, "dc1", ledger.Options{}), newSite(t, "dc2", ledger.Options{})
	c := newSite(t, "dc3", ledger.Options{})
	c.run(t, "ordinary")
	_ = c.Publish(t.Context())
	ordinary, err := c.Changes(t.Context(), "dc3", "", 7)
	if err != nil || len(ordinary.Changes) != 1 {
		t.Fatal(ordinary, err)
	}
	spoil := func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/ledger/changes" {
			return false
		}
		if r.URL.Query().Get("from_ms") != "" {
			if _, err := b.Import(r.Context(), ordinary.Changes, nil); err != nil {
				t.Error(err)
			}
			return false
		}
		_ = a.Publish(r.Context())
		f, err := a.Changes(r.Context(), "dc1", r.URL.Query().Get("after"), 7)
		if err != nil {
			return false
		}
		f.Changes = nil
		body, _ := AppendFeed(nil, &f)
		_, _ = w.Write(body)
		return true
	}
	a.spoil.Store(&spoil)
	for i := range 3 {
		a.run(t, fmt.Sprint("k", i))
	}
	p := follow(t, b, a, "")
	eventually(t, "all is repaired", func() bool { return b.has(t, "dc1") == 3 && p.Status()[0].Repaired >= 3 })
	if n := p.Status()[0].Repaired; n != 3 {
		t.Errorf("%d outcomes count as repaired instead of 3", n)
	}
	if n := b.has(t, "dc3"); n != 1 {
		t.Errorf("%d outcomes of the feed arrived meanwhile", n)
	}
}

// TestSlowDigestsDelayNothing: changes arrive while a peer does not answer a call for digests.
func TestSlowDigestsDelayNothing(t *testing.T) {
	a, b := newSite(t, "dc1", ledger.Options{}), newSite(t, "dc2", ledger.Options{})
	asked, over := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(asked) })
	hang := func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/ledger/digests" {
			return false
		}
		once()
		<-over
		return false
	}
	a.spoil.Store(&hang)
	a.run(t, "first")
	p := follow(t, b, a, "")
	t.Cleanup(func() { close(over) })
	<-asked
	a.run(t, "second")
	eventually(t, "the second arrives", func() bool { return b.has(t, "dc1") == 2 })
	if s := p.Status()[0]; s.Failures != 0 {
		t.Errorf("the second waited for the end of the call: %+v", s)
	}
}

// TestFirstCallIsNotHeld: what the peer says about its list of data centres is known at once, also where it has nothing new.
func TestFirstCallIsNotHeld(t *testing.T) {
	from, to := newSite(t, "dc1", ledger.Options{}), newSite(t, "dc2", ledger.Options{})
	waits := make(chan string, 100)
	tell := func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/v1/ledger/changes" {
			select {
			case waits <- r.URL.Query().Get("wait_ms"):
			default:
			}
		}
		return false
	}
	from.spoil.Store(&tell)
	follow(t, to, from, "")
	if first, second := <-waits, <-waits; first != "0" || second == "0" {
		t.Errorf("the first call waits %q ms, the second one %q", first, second)
	}
}

func TestOldCursorLeadsToACopy(t *testing.T) {
	a, b := newSite(t, "dc1", ledger.Options{}), newSite(t, "dc2", ledger.Options{})
	a.Feed = feed.New(a.st, a.Ledger, feed.Options{Kept: 3})
	down := func(w http.ResponseWriter, r *http.Request) bool {
		w.WriteHeader(503)
		return true
	}
	a.run(t, "first")
	p := follow(t, b, a, "")
	eventually(t, "the first arrives", func() bool { return b.has(t, "dc1") == 1 })
	a.spoil.Store(&down)
	for i := range 40 {
		a.run(t, fmt.Sprint("k", i))
		_ = a.Publish(t.Context())
	}
	eventually(t, "it lags", func() bool { s := p.Status()[0]; return s.Error != "" && s.LagSeconds > 0 })
	a.spoil.Store(nil)
	eventually(t, "all arrives", func() bool { return b.has(t, "dc1") == 41 })
	eventually(t, "nothing is missing", func() bool {
		s := p.Status()[0]
		return s.Error == "" && s.LagEntries == 0 && s.LagSeconds == 0 && s.Copies > 0
	})
}

func TestPeersGetTheirToken(t *testing.T) {
	a, b := newSite(t, "dc1", ledger.Options{}), newSite(t, "dc2", ledger.Options{})
	check := func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") == "Bearer secret-of-dc1" {
			return false
		}
		w.WriteHeader(401)
		return true
	}
	a.spoil.Store(&check)
	a.run(t, "k")
	follow(t, b, a, "secret-of-dc1")
	eventually(t, "it is there", func() bool { return b.has(t, "dc1") == 1 })
	for _, text := range []string{"", "a b c", "other t", "t\nt"} {
		file := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := NewNetwork(Config{Origin: "dc2", Peers: []Peer{{"dc1", "http://h"}}, TokenFile: file}); err == nil || !strings.Contains(err.Error(), "--peer-token-file") || text != "" && strings.Contains(err.Error(), " t ") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
