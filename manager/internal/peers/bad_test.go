package peers

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// followLogged pulls until stop is called. Then the log may be read.
func followLogged(t *testing.T, to, from *site, log io.Writer) (p *Puller, stop func()) {
	t.Helper()
	n, err := NewNetwork(Config{Origin: to.name, Peers: []Peer{{from.name, from.srv.URL}}})
	if err != nil {
		t.Fatal(err)
	}
	p = New(Options{Network: n, Feed: to.Feed, Store: to.st, Log: slog.New(slog.NewTextHandler(log, nil)), CheckEvery: 20 * time.Millisecond})
	stop = sync.OnceFunc(run(t, p))
	t.Cleanup(stop)
	return p, stop
}

// TestBadPeers: what a peer answers wrongly is an error, and nothing of it is imported.
func TestBadPeers(t *testing.T) {
	change := `{"origin":"dc1","sequence":1,"key":"k","scope":"","state":"committed","token":"t","fence":0,"hlc":"1","age_ms":1,"expires_in_ms":1000,"result":{"status":200}}`
	for name, bad := range map[string]struct {
		body string
		want string
	}{
		"no JSON":        {`<html>`, "not a page of changes"},
		"other JSON":     {`{}`, "has no changes"},
		"another origin": {`{"changes":[` + strings.Replace(change, "dc1", "dc9", 1) + `],"cursor":"c"}`, `has the origin "dc9"`},
		"no result":      {`{"changes":[` + strings.Replace(change, `{"status":200}`, `7`, 1) + `],"cursor":"c"}`, "change 1"},
		"no clock":       {`{"changes":[` + strings.Replace(change, `"hlc":"1"`, `"hlc":"-1"`, 1) + `],"cursor":"c"}`, "change 1"},
		"no change":      {`{"changes":[7],"cursor":"c"}`, "change 0"},
		"endless":        {strings.Repeat(" ", maxPage+1), "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newSite(t, "dc1", ledger.Options{}), newSite(t, "dc2", ledger.Options{})
			answer := func(w http.ResponseWriter, r *http.Request) bool {
				_, _ = io.WriteString(w, bad.body)
				return true
			}
			a.spoil.Store(&answer)
			p := follow(t, b, a, "")
			eventually(t, bad.want, func() bool { return strings.Contains(p.Status()[0].Error, bad.want) })
			if n := b.has(t, "dc1") + b.has(t, "dc9"); n != 0 {
				t.Errorf("%d outcomes were imported", n)
			}
		})
	}
	// A change that is malformed costs only itself.
	a, b := newSite(t, "dc1", ledger.Options{}), newSite(t, "dc2", ledger.Options{})
	answer := func(w http.ResponseWriter, r *http.Request) bool {
		_, _ = io.WriteString(w, `{"changes":[`+strings.Replace(change, `"k"`, `"\n"`, 1)+`,`+strings.Replace(change, `"hlc":"1"`, `"hlc":"18446744073709551615"`, 1)+`,`+change+`],"cursor":"c"}`)
		return true
	}
	a.spoil.Store(&answer)
	follow(t, b, a, "")
	eventually(t, "the good one is there", func() bool { return b.has(t, "dc1") == 1 && b.OriginStats().Invalid >= 2 })
}

// TestDroppedOutcomesAreMissing: outcomes for which the window had no room are missing, although the feed is read to its end.
func TestDroppedOutcomesAreMissing(t *testing.T) {
	a, b := newSite(t, "dc1", ledger.Options{}), newSite(t, "dc2", ledger.Options{MaxEntries: 10, ScopeShare: -1})
	for i := range 30 {
		a.run(t, fmt.Sprint("k", i))
	}
	p := follow(t, b, a, "")
	eventually(t, "20 are missing", func() bool {
		s := p.Status()[0]
		return s.LagEntries == 20 && strings.HasPrefix(s.Error, "20 outcomes of the peer are not kept here")
	})
	for i := range 20 {
		if _, err := a.Delete(t.Context(), "", fmt.Sprint("k", i)); err != nil {
			t.Fatal(err)
		}
		if _, err := b.DeleteImported(t.Context(), "", fmt.Sprint("k", i), "dc1"); err != nil && !errors.Is(err, ledger.ErrNotFound) {
			t.Fatal(err)
		}
	}
	eventually(t, "none is missing", func() bool { s := p.Status()[0]; return s.LagEntries == 0 && s.Error == "" })
}

// TestRefusedOutcomesAreShown: a peer reports an outcome with a clock of the distant future. It is not stored, the others
// are, and status and log name the peer until the outcome is gone there.
func TestRefusedOutcomesAreShown(t *testing.T) {
	a, b := newSite(t, "dc1", ledger.Options{}), newSite(t, "dc2", ledger.Options{})
	ahead := func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/ledger/changes" {
			return false
		}
		rec := httptest.NewRecorder()
		a.answer(rec, r)
		f, err := parseFeed(rec.Body.Bytes())
		if err != nil {
			t.Error(err)
			return false
		}
		for i := range f.Changes {
			if f.Changes[i].Key == "bad" {
				f.Changes[i].HLC += uint64((50 * 365 * 24 * time.Hour).Milliseconds()) << 16
			}
		}
		body, err := AppendFeed(nil, f)
		if err != nil {
			t.Error(err)
		}
		_, _ = w.Write(body)
		return true
	}
	a.spoil.Store(&ahead)
	for _, key := range []string{"good", "bad", "fine"} {
		a.run(t, key)
	}
	var log bytes.Buffer
	p, stop := followLogged(t, b, a, &log)
	refused := func() bool {
		s := p.Status()[0]
		return s.Refused > 0 && strings.Contains(s.Error, "hlc") && s.LagEntries == 0
	}
	eventually(t, "the others are here", func() bool { return b.has(t, "dc1") == 2 && refused() })
	again := p.Status()[0].Refused
	eventually(t, "a comparison tries again", func() bool { return p.Status()[0].Refused > again })
	if n := b.has(t, "dc1"); n != 2 || !refused() {
		t.Errorf("%d outcomes are here, %+v", n, p.Status()[0])
	}
	if _, err := a.Delete(t.Context(), "", "bad"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing refused is missing", func() bool { return p.Status()[0].Error == "" })
	stop()
	if text := log.String(); strings.Count(text, "level=ERROR") != 1 || !strings.Contains(text, "peer=dc1") {
		t.Errorf("logged: %s", text)
	}
}

// TestDeletionsStay: an outcome of another data centre is not deleted while a comparison would bring it back.
func TestDeletionsStay(t *testing.T) {
	a, b := newSite(t, "dc1", ledger.Options{}), newSite(t, "dc2", ledger.Options{})
	a.run(t, "k")
	p := follow(t, b, a, "")
	eventually(t, "the outcome is here", func() bool { return b.has(t, "dc1") == 1 })
	var imported *ledger.ImportedError
	if _, err := b.Delete(t.Context(), "", "k"); !errors.As(err, &imported) || imported.Origin != "dc1" {
		t.Errorf("a deletion that would be undone: %v", err)
	}
	if _, err := a.Delete(t.Context(), "", "k"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.DeleteImported(t.Context(), "", "k", "dc1"); err != nil {
		t.Fatal(err)
	}
	a.run(t, "later")
	eventually(t, "a later outcome is here", func() bool { return b.has(t, "dc1") == 1 })
	if n := p.Status()[0].Repaired; n != 0 {
		t.Errorf("%d outcomes were repaired", n)
	}
	if got := b.attempt(t, "k"); got != "none " {
		t.Errorf("the key is %q", got)
	}
}
