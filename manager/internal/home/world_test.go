package home_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/feed"
	"github.com/oncegate/oncegate/manager/internal/home"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/server"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// fault is what becomes of a call from one data centre to another.
type fault int

const (
	arrives fault = iota
	cut           // it never leaves
	lost          // it arrives, and its answer is lost
	twice         // it arrives twice
)

// world is several data centres and the network between them.
type world struct {
	t     *testing.T
	names []string
	dcs   map[string]*dc
	// quarantine is that of data centres that are added from now on.
	quarantine ledger.Quarantine

	mu     sync.Mutex
	faults func(from, to string) fault // nil: none
	// answered, when set, runs before an answer arrives.
	answered func(from, to string)
}

// dc is a data centre with one manager.
type dc struct {
	*httpdtest.Site
	w      *world
	name   string
	names  []string
	ledger *ledger.Ledger
	feed   *feed.Feed
	homes  *home.Homes
	client http.Client
}

func newWorld(t *testing.T, n int, opts home.Options) *world {
	w := &world{t: t, dcs: make(map[string]*dc)}
	for i := range n {
		w.names = append(w.names, fmt.Sprintf("dc%d", i+1))
	}
	for _, name := range w.names {
		w.add(name, w.names, opts)
	}
	for _, d := range w.dcs {
		for _, other := range w.dcs {
			if other != d {
				d.homes.Meet(other.homes.Said())
			}
		}
	}
	return w
}

// add starts a data centre that knows of those in names.
func (w *world) add(name string, names []string, opts home.Options) *dc {
	st := mem.New(mem.Options{})
	w.t.Cleanup(func() { _ = st.Close() })
	d := &dc{w: w, name: name, names: names}
	var err error
	if d.ledger, err = ledger.New(st, ledger.Options{Quarantine: w.quarantine}); err != nil {
		w.t.Fatal(err)
	}
	d.feed = feed.New(st, d.ledger, feed.Options{})
	d.homes = home.New(d, opts)
	reach := home.Reach{Homes: d.homes, Engine: "memory"}
	log := new(httpdtest.Log)
	s, err := server.New(server.Options{Options: httpd.Options{Version: httpdtest.Version, Logger: log.Logger()}}, server.LedgerRoutes(d.ledger, nil, nil, reach), server.OriginRoutes(d.ledger, nil, nil, d.homes))
	if err != nil {
		w.t.Fatal(err)
	}
	d.Site = httpdtest.Start(w.t, s, httpdtest.Options{Drain: d.ledger.Drain})
	d.client.Transport = &http.Transport{}
	w.t.Cleanup(d.client.CloseIdleConnections)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dcs[name] = d
	return d
}

func (w *world) set(f func(from, to string) fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = f
}

func (w *world) fault(from, to string) fault {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.faults == nil {
		return arrives
	}
	return w.faults(from, to)
}

// A dc is the network of its own home.Homes.

func (d *dc) Origin() string  { return d.name }
func (d *dc) Names() []string { return d.names }

func (d *dc) URL(name string) string {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if to := d.w.dcs[name]; to != nil {
		return to.Base
	}
	return ""
}

var errNetwork = errors.New("the network is broken")

func (d *dc) Do(to string, r *http.Request) (*http.Response, error) {
	f := d.w.fault(d.name, to)
	if f == cut {
		return nil, errNetwork
	}
	// The second copy of a release is fenced if somebody has reserved the key since the first.
	if f == twice && !strings.HasSuffix(r.URL.Path, "/release") {
		again := r.Clone(r.Context())
		again.Body, _ = r.GetBody()
		if resp, err := d.client.Do(again); err == nil {
			resp.Body.Close()
		}
	}
	resp, err := d.client.Do(r)
	if f == lost && err == nil {
		resp.Body.Close()
		return nil, errNetwork
	}
	d.w.mu.Lock()
	answered := d.w.answered
	d.w.mu.Unlock()
	if answered != nil {
		answered(d.name, to)
	}
	return resp, err
}

// homed returns a key without a scope of which a data centre computes that it is the home.
func (w *world) homed(d *dc, prefix string) string {
	for i := 0; ; i++ {
		key := fmt.Sprintf("%s-%d", prefix, i)
		if d.names[api.Home(d.names, "", key)] == d.name {
			return key
		}
	}
}

// key returns a key without a scope whose home is that data centre.
func (w *world) key(home, prefix string) string {
	for i := 0; ; i++ {
		key := fmt.Sprintf("%s-%d", prefix, i)
		if w.names[api.Home(w.names, "", key)] == home {
			return key
		}
	}
}

// call makes a call of the ledger and returns its status, and its state or its problem's code.
func (d *dc) call(op, body string) (int, string) {
	d.w.t.Helper()
	a := d.JSON("POST", "/v1/ledger/"+op, body)
	if a.Status >= 400 {
		return a.Status, gjson.Get(a.Body, "code").String()
	}
	return a.Status, gjson.Get(a.Body, "state").String()
}

// want makes a call and compares status and state or code: "201 reserved".
func (d *dc) want(want, op, format string, args ...any) {
	d.w.t.Helper()
	status, word := d.call(op, fmt.Sprintf(format, args...))
	if got := fmt.Sprint(status, " ", word); got != want {
		d.w.t.Errorf("%s: %s %s: %s, want %s", d.name, op, fmt.Sprintf(format, args...), got, want)
	}
}

const (
	reserve = `{"key":%q,"token":%q,"durability":"global"}`
	bare    = `{"key":%q,"token":%q}`
	commit  = `{"key":%q,"token":%q,"result":{"status":201,"body":"aGk="}}`
)
