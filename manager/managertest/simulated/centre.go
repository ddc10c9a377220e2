package simulated

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/feed"
	"github.com/oncegate/oncegate/manager/internal/home"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
	"github.com/oncegate/oncegate/manager/internal/peers"
	"github.com/oncegate/oncegate/manager/internal/server"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Centre makes a manager one of several data centres.
type Centre struct {
	// Origin is its name, and Peers are the names of the others.
	Origin string
	Peers  []string
	// Transport carries its calls to the others. The host of a URL is the name of the data centre.
	Transport http.RoundTripper
	// HomeTimeout bounds a call at a key's home, and CompareEvery is how often digests are compared.
	HomeTimeout, CompareEvery time.Duration
	// ChangesKept is how far the change feed goes back.
	ChangesKept int
	// CacheFor bounds how long gates answer from their caches.
	CacheFor time.Duration
	// Jitter decides pauses between calls to a peer that fails; see peers.Options.
	Jitter func(time.Duration) time.Duration
}

// adjust sets what a ledger of a data centre has besides. The sweep's interval is no multiple of the publisher's: what two
// tickers do at one instant has no order.
func (c *Centre) adjust(o *ledger.Options) {
	if c != nil {
		o.Origin, o.CleanupInterval = c.Origin, 3001*time.Millisecond
	}
}

// network is what connects a data centre with the others; nil for a manager of none.
func (c *Centre) network() (*peers.Network, error) {
	if c == nil {
		return nil, nil
	}
	config := peers.Config{Origin: c.Origin, Transport: c.Transport}
	for _, name := range c.Peers {
		config.Peers = append(config.Peers, peers.Peer{Name: name, URL: "http://" + name})
	}
	return peers.NewNetwork(config)
}

// openCentre opens what the manager does with other data centres.
func (m *Manager) openCentre(ctx context.Context, st store.Store, network *peers.Network) (reach home.Reach, routes []httpd.Route, err error) {
	c := m.options.Centre
	if c == nil {
		return reach, nil, nil
	}
	m.feed = feed.New(st, m.ledger, feed.Options{Kept: c.ChangesKept})
	if err := m.feed.Open(ctx, m.restoredName()); err != nil {
		return reach, nil, err
	}
	homes := home.New(network, home.Options{Timeout: c.HomeTimeout})
	log := slog.New(slog.DiscardHandler)
	m.puller = peers.New(peers.Options{
		Network: network, Feed: m.feed, Store: st, Log: log, CheckEvery: c.CompareEvery, Lists: homes, Jitter: c.Jitter,
		Self: patientSelf{peers.Own{Keeper: m.me, Quarantine: m.restored, Remembers: m.longest, Log: log}},
	})
	return home.Reach{Homes: homes, CacheFor: c.CacheFor}, server.OriginRoutes(m.ledger, m.feed, m.puller, homes), nil
}

// runCentre starts the publisher and the pullers. They begin one after the other, so that their timers differ.
func (m *Manager) runCentre(ctx context.Context) {
	if m.puller == nil {
		return
	}
	m.work.Go(func() {
		time.Sleep(137 * time.Microsecond)
		m.feed.Run(ctx, nil)
	})
	m.work.Go(func() {
		time.Sleep(251 * time.Microsecond)
		m.puller.Run(ctx)
	})
}

// View is what a data centre holds of the outcomes of all.
type View struct {
	// Digests are those of each origin's outcomes, as text.
	Digests map[string]string
	// Winners are the answers that retries get, by scope and key. Conflicts are what is listed of keys that ran more than once,
	// by scope and key, in the order of origins and answers.
	Winners   map[string]string
	Conflicts map[string][]Ran
}

// Ran is an answer in a conflict, and the origin that recorded it.
type Ran struct{ Origin, Body string }

// Holds reports whether a key has an answer, as its winner or in a conflict.
func (v *View) Holds(key, body string) bool {
	winner, ok := v.Winners[key]
	return ok && winner == body || slices.ContainsFunc(v.Conflicts[key], func(r Ran) bool { return r.Body == body })
}

// View reads what the ledger holds, at most 1000 keys.
func (m *Manager) View(ctx context.Context) (*View, error) {
	v := &View{Digests: make(map[string]string), Winners: make(map[string]string), Conflicts: make(map[string][]Ran)}
	for _, origin := range append([]string{m.options.Centre.Origin}, m.options.Centre.Peers...) {
		d, _, err := m.feed.Digests(ctx, origin, feed.LeastSpan)
		if err != nil {
			return nil, err
		}
		v.Digests[origin] = fmt.Sprint(d)
	}
	list, err := m.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, e := range list {
		if e.State.Terminal() {
			v.Winners[e.Scope+" "+e.Key] = bodyOf(e.Result)
		}
	}
	conflicts, _, err := views.Conflicts(ctx, m.ledger, views.MaxLimit, "")
	for _, c := range conflicts {
		var of []Ran
		for _, o := range c.Outcomes {
			of = append(of, Ran{o.Origin, bodyOf(o.Result)})
		}
		slices.SortFunc(of, func(a, b Ran) int { return cmp.Or(cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.Body, b.Body)) })
		v.Conflicts[c.Scope+" "+c.Key] = of
	}
	return v, err
}

// bodyOf is the body of an answer in its raw form.
func bodyOf(raw []byte) string {
	var r api.Result
	if err := r.ParseRaw(raw); err != nil {
		return err.Error()
	}
	return string(r.Body)
}
