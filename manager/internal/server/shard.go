package server

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
	"github.com/oncegate/oncegate/manager/internal/shard"
	"github.com/oncegate/oncegate/manager/internal/submit"
)

// shardGuard refuses requests that mean another shard or another ledger.
type shardGuard struct {
	ledger        *shard.Keeper // nil admits everything
	log           *slog.Logger
	strays        strays
	total, others prometheus.Counter
}

func newShardGuard(ledger *shard.Keeper, log *slog.Logger) *shardGuard {
	return &shardGuard{ledger: ledger, log: log, total: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "oncegate_http_wrong_shard_total", Help: "Requests answered 421 because they meant another shard: something is wired wrongly.",
	}), others: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "oncegate_http_wrong_ledger_total", Help: "Requests answered 421 because their caller last met another ledger: two ledgers answer as one.",
	})}
}

// mark says in an answer which ledger this is, and how far it is.
func (g *shardGuard) mark(w *httpd.Response) {
	if g.ledger != nil {
		w.SetHeader(api.HeaderLedger, g.ledger.Mark().String())
	}
}

// stray answers a request that means another shard or ledger than this one, and counts it for the alarm; it reports whether it
// did. It also puts this shard's name on the answer, whatever that will be.
func (g *shardGuard) stray(r *httpd.Request, w *httpd.Response) bool {
	return g.ledger != nil && (g.wrongShard(r, w) || g.wrongLedger(r, w))
}

// wrongLedger has the ledger compare what a gate or another data centre remembers of it. Other callers cannot begin a
// quarantine.
func (g *shardGuard) wrongLedger(r *httpd.Request, w *httpd.Response) bool {
	text := r.Header(api.HeaderLedger)
	if text == "" || !r.May(httpd.Gate|httpd.Peer|httpd.Plain) {
		return false
	}
	m, ok := api.ParseMark(text)
	if !ok {
		r.Error(w, &api.FieldError{Field: api.HeaderLedger, Value: httpd.Clip(text), Allowed: "must be what an answer had in it, ID.EPOCH.POSITION"})
		return true
	}
	err := g.ledger.Meet(r.Context(), m, "a caller at "+r.Remote())
	var other *shard.OtherError
	if !errors.As(err, &other) {
		if err != nil {
			r.Error(w, err)
		}
		return err != nil
	}
	g.others.Inc()
	if n := g.strays.count(time.Now()); n > 0 {
		g.log.Error("ALARM: a caller last met another ledger: two ledgers answer as one, or a cluster or a route has changed; nothing was done",
			"ledger", other.Mine, "met", other.Theirs, "remote", r.Remote(), "path", httpd.Clip(r.Path), "such_calls", n)
	}
	w.Problem(&api.Problem{
		Status: 421, Code: api.CodeWrongLedger, Title: "Wrong ledger", RetryAfterSeconds: int(other.Longest/time.Second) + 1,
		Detail: other.Error() + "; both may have keys that the other one does not know; nothing was done",
	})
	return true
}

// wrongShard answers a request that means another shard than this one.
func (g *shardGuard) wrongShard(r *httpd.Request, w *httpd.Response) bool {
	me := g.ledger.Identity()
	if me.Name == "" {
		return false
	}
	w.SetHeader(api.HeaderShard, me.Name)
	meant := r.Header(api.HeaderShard)
	if meant == me.Name || meant == "" && r.HeaderCount(api.HeaderShard) == 0 {
		return false
	}
	g.total.Inc()
	if n := g.strays.count(time.Now()); n > 0 {
		g.log.Error("ALARM: a call means another shard than this manager is: a cluster or a route leads to the wrong manager; nothing was done",
			"shard", me.Name, "ledger", me.ID, "meant", httpd.Clip(meant), "remote", r.Remote(), "path", httpd.Clip(r.Path), "such_calls", n)
	}
	w.Problem(&api.Problem{
		Status: 421, Code: api.CodeWrongShard, Title: "Wrong shard",
		Detail: "this manager is the shard " + strconv.Quote(me.Name) + ", and the call means " + strconv.Quote(httpd.Clip(meant)) + "; nothing was done",
	})
	return true
}

// strayAlarms is how often calls for other shards are logged at most.
const strayAlarms = 10 * time.Second

// strays are the calls for other shards that were not logged yet.
type strays struct {
	mu   sync.Mutex
	n    int
	last time.Time
}

// count returns how many came since it last returned any; 0 if that was less than strayAlarms ago.
func (s *strays) count(now time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	if !s.last.IsZero() && now.Sub(s.last) < strayAlarms {
		return 0
	}
	n := s.n
	s.n, s.last = 0, now
	return n
}

// MovedEntries counts the entries that are here of keys that other shards own, submissions to the queue apart.
func MovedEntries(ctx context.Context, l *ledger.Ledger) (ledger.Counts, error) {
	return views.Moved(ctx, l, submit.InScope)
}

// shard answers GET /v1/ledger/shard.
func (h *ledgerHandlers) shard(r *httpd.Request, w *httpd.Response) error {
	moved, err := MovedEntries(r.Context(), h.ledger)
	if err != nil {
		return err
	}
	return answer(w, schema.Shard{LedgerIdentity: identity(h.me), Moved: schema.EntryCounts(moved)})
}
