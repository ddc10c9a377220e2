package home

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/api"
)

// Network calls the other data centres. See peers.Network.
type Network interface {
	// Origin is the name of this data centre.
	Origin() string
	// Names are those of all data centres, this one included, in order.
	Names() []string
	// URL is the address of a data centre without a path; "" for one that is not in the list.
	URL(name string) string
	// Do makes a request to another data centre. The request's context bounds it.
	Do(name string, r *http.Request) (*http.Response, error)
}

// Options configure Homes; the zero value of a field means its default.
type Options struct {
	// Timeout bounds a call at a home, without what the home may hold it. It must be less than what gates give a call
	// (manager.timeout_ms). Default 4 s.
	Timeout time.Duration
	// MaxCalls bounds the calls that are under way to one home; half of them may be held. Default 512.
	MaxCalls int
}

// The answers to calls that a home did not answer. Both are problems.
var (
	// ErrUnavailable: the home cannot be reached, and nothing was changed.
	ErrUnavailable = errors.New("home: unavailable")
	// ErrUnanswered: the home may have made the call.
	ErrUnanswered = errors.New("home: unanswered")
)

// Error is why a home did not make a call. It is an ErrUnavailable, an ErrUnanswered, or neither: what the home itself
// refused.
type Error struct {
	p  api.Problem
	is error
}

func (e *Error) Error() string { return e.p.Title + ": " + e.p.Detail }

// Is makes errors.Is find ErrUnavailable and ErrUnanswered.
func (e *Error) Is(target error) bool { return e.is != nil && target == e.is }

// Problem is how the error is answered.
func (e *Error) Problem() api.Problem { return e.p }

// Homes knows the homes of keys. It is safe for concurrent use and starts no goroutine.
type Homes struct {
	network Network
	opts    Options
	names   []string
	list    string // the names, joined
	places  map[string]*places
	calls   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	// foreign is the list of another data centre that differs from this one's; nil: none was met lately.
	foreign atomic.Pointer[foreignList]
	// agreed: what that data centre said last of its list is this one's.
	agreed  map[string]*atomic.Bool
	refuses prometheus.GaugeFunc
}

// foreignList is a list of data centres that differs from this manager's.
type foreignList struct {
	from, list string
	until      time.Time
}

// distrust is for how long a manager that met another list is the home of no new keys.
const distrust = time.Minute

// places are the calls to one home that may be under way.
type places struct{ all, held chan struct{} }

// New returns what knows the homes in a network.
func New(network Network, opts Options) *Homes {
	opts.Timeout = cmp.Or(opts.Timeout, 4*time.Second)
	opts.MaxCalls = cmp.Or(opts.MaxCalls, 512)
	h := &Homes{
		network: network, opts: opts, names: slices.Clone(network.Names()), places: make(map[string]*places),
		agreed: make(map[string]*atomic.Bool),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "oncegate_home_calls_total", Help: "Calls about global keys that were made at their home in another data centre, by home and how they ended.",
		}, []string{"home", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "oncegate_home_call_seconds", Help: "Time of the calls that a home answered, waits included.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"home"}),
	}
	slices.Sort(h.names)
	h.list = strings.Join(h.names, ",")
	h.refuses = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "oncegate_home_refuses", Help: "1 while this data centre is the home of no new keys, because data centres have different lists or one has not sent its list yet; else 0.",
	}, func() float64 { return map[bool]float64{true: 1}[h.Take() != nil] })
	for _, name := range h.names {
		if name != network.Origin() {
			h.agreed[name] = new(atomic.Bool)
		}
		h.places[name] = &places{make(chan struct{}, opts.MaxCalls), make(chan struct{}, max(opts.MaxCalls/2, 1))}
	}
	return h
}

// Collectors are the metrics for a registry.
func (h *Homes) Collectors() []prometheus.Collector {
	return []prometheus.Collector{h.calls, h.seconds, h.refuses}
}

// Origin is the name of this data centre.
func (h *Homes) Origin() string { return h.network.Origin() }

// Home returns the name of the key's home, and whether that is another data centre.
func (h *Homes) Home(scope, key string) (name string, elsewhere bool) {
	name = h.names[api.Home(h.names, scope, key)]
	return name, name != h.network.Origin()
}

// Take returns an error unless this data centre may be the home of a new key: it has met no other list lately, and what
// each of its peers said last is its own list. Of two data centres with different lists that both list each other, one
// therefore does not run a key of which both compute that they are the home.
func (h *Homes) Take() error {
	if f := h.foreign.Load(); f != nil && time.Now().Before(f.until) {
		return h.differs(f.from, f.list, time.Until(f.until))
	}
	for _, name := range h.names {
		if agreed := h.agreed[name]; agreed != nil && !agreed.Load() {
			return &Error{is: ErrUnavailable, p: api.Problem{
				Status: 503, Code: api.CodeHomeUnavailable, Title: "Home unavailable", RetryAfterSeconds: retrySoon,
				Detail: fmt.Sprintf("the data centre %s decides here, and has not heard yet from %s that the data centres are %s; nothing was changed", h.Origin(), name, h.list),
			}}
		}
	}
	return nil
}

// differs is the refusal of a call that may be repeated after that time; 0: when an operator has changed something.
func (h *Homes) differs(from, list string, after time.Duration) error {
	return &Error{p: api.Problem{
		Status: 421, Code: api.CodeWrongHome, Title: "Wrong home", RetryAfterSeconds: int((after + time.Second - 1) / time.Second),
		Detail: fmt.Sprintf("the data centres of %s are %s, and those of %s are %s; all must have the same list; nothing was changed", h.Origin(), h.list, from, list),
	}}
}

// Admit returns an error unless this data centre is the home of the key, and the caller, another data centre, means so
// for the same reason. meant is the home that the caller means, list its data centres, from its own name.
func (h *Homes) Admit(from, meant, list, scope, key string) error {
	if !h.meet(from, list) {
		return h.differs(clip(from), clip(list), 0)
	}
	name, elsewhere := h.Home(scope, key)
	if elsewhere || meant != h.Origin() {
		return &Error{p: api.Problem{
			Status: 421, Code: api.CodeWrongHome, Title: "Wrong home",
			Detail: "this is the data centre " + h.Origin() + ", the call means " + strconv.Quote(clip(meant)) + ", and the home of the key is " + name + "; nothing was changed",
		}}
	}
	return nil
}

// Said is what this data centre sends others about its list, for their Meet.
func (h *Homes) Said() string { return h.Origin() + "=" + h.list }

// Meet takes note of what another data centre said about its list. Nothing is noted where it said nothing.
func (h *Homes) Meet(said string) {
	if from, list, ok := strings.Cut(said, "="); ok {
		h.meet(from, list)
	}
}

// meet reports whether the list is this data centre's. Else this one is the home of no new keys for a while.
func (h *Homes) meet(from, list string) bool {
	if agreed := h.agreed[from]; agreed != nil {
		agreed.Store(list == h.list)
	}
	if list == h.list {
		return true
	}
	h.foreign.Store(&foreignList{from: clip(from), list: clip(list), until: time.Now().Add(distrust)})
	return false
}

func clip(s string) string {
	if len(s) > 256 {
		return s[:256] + "..."
	}
	return s
}

// maxAnswer bounds the answer of a home: a reply with the largest result.
const maxAnswer = 5 << 20

// Call makes a call at its home. message is the call's raw form, and wait is for how long the home may hold it.
//
// Errors: *Error.
func (h *Homes) Call(ctx context.Context, home string, op api.Op, message []byte, wait time.Duration) (api.ReserveReply, error) {
	reply, outcome, err := h.call(ctx, home, op, message, wait)
	h.calls.WithLabelValues(home, outcome).Inc()
	return reply, err
}

// Wait returns for how long a call that wants to wait may be held, and what must be called after it.
func (h *Homes) Wait(home string, want time.Duration) (wait time.Duration, done func()) {
	p := h.places[home]
	if want <= 0 || p == nil {
		return 0, func() {}
	}
	select {
	case p.held <- struct{}{}:
		return want, sync.OnceFunc(func() { <-p.held })
	default:
		return 0, func() {}
	}
}

func (h *Homes) call(ctx context.Context, home string, op api.Op, message []byte, wait time.Duration) (reply api.ReserveReply, outcome string, err error) {
	p := h.places[home]
	address := h.network.URL(home)
	if p == nil || address == "" {
		return reply, "unavailable", unavailable(home, "it is not among this manager's peers")
	}
	select {
	case p.all <- struct{}{}:
		defer func() { <-p.all }()
	default:
		return reply, "busy", unavailable(home, "too many calls to it are under way")
	}
	ctx, cancel := context.WithTimeout(ctx, h.opts.Timeout+wait)
	defer cancel()
	// A request that was not written changed nothing. A retry of net/http's own is a request like the first.
	var written atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { written.Store(true) }})
	q := url.Values{"home": {home}, "from": {h.Origin()}, "of": {h.list}}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, address+api.PathHome+op.String()+"?"+q.Encode(), bytes.NewReader(message))
	if err != nil {
		return reply, "unavailable", unavailable(home, err.Error())
	}
	r.Header.Set("Content-Type", api.ContentTypeRaw)
	start := time.Now()
	resp, err := h.network.Do(home, r)
	if err != nil {
		if written.Load() {
			return reply, "unanswered", unanswered(home, reason(err))
		}
		return reply, "unavailable", unavailable(home, reason(err))
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil || len(body) > maxAnswer {
		return reply, "unanswered", unanswered(home, "its answer broke off")
	}
	h.seconds.WithLabelValues(home).Observe(time.Since(start).Seconds())
	if resp.Header.Get(api.HeaderManager) == "" {
		return reply, "unanswered", unanswered(home, "status "+strconv.Itoa(resp.StatusCode)+" of something on the way")
	}
	if resp.StatusCode/100 == 2 {
		if err := reply.ParseRaw(body); err != nil {
			return reply, "unanswered", unanswered(home, "its answer cannot be read")
		}
		return reply, "answered", nil
	}
	return h.refused(home, resp, body)
}

// refused says what a home's refusal means for the caller.
func (h *Homes) refused(home string, resp *http.Response, body []byte) (reply api.ReserveReply, outcome string, err error) {
	var p api.Problem
	if json.Unmarshal(body, &p) != nil || p.Status != resp.StatusCode {
		return reply, "unanswered", unanswered(home, "status "+strconv.Itoa(resp.StatusCode))
	}
	p.RetryAfterSeconds, _ = strconv.Atoi(resp.Header.Get("Retry-After"))
	why := "it answered " + strconv.Itoa(p.Status) + " " + string(p.Code)
	switch {
	case p.Code == api.CodeUnavailable || p.Status == 500 && p.Code != api.CodeRecordUnreadable:
		return reply, "unanswered", unanswered(home, why)
	case p.Status == 401, p.Status == 403, p.Status == 404, p.Status == 405:
		// This manager's credentials are wrong, or something else is at the home's address.
		return reply, "unavailable", unavailable(home, why)
	case p.Status == 503 && p.Code != api.CodeLedgerFull && p.Code != api.CodeQuarantine:
		return reply, "unavailable", unavailable(home, why)
	case p.Code == api.CodeWrongHome:
		outcome = "wrong_home"
	default:
		outcome = "refused"
	}
	return reply, outcome, &Error{p: p}
}

// reason is the innermost text of an error of net/http, without the address.
func reason(err error) string {
	var by *url.Error
	if errors.As(err, &by) {
		err = by.Err
	}
	return err.Error()
}

// retrySoon is the Retry-After of calls that a home did not make.
const retrySoon = 1

func unavailable(home, why string) error {
	return &Error{is: ErrUnavailable, p: api.Problem{
		Status: 503, Code: api.CodeHomeUnavailable, Title: "Home unavailable", RetryAfterSeconds: retrySoon,
		Detail: "the data centre " + home + " decides about this key and cannot be reached: " + why + "; nothing was changed",
	}}
}

func unanswered(home, why string) error {
	return &Error{is: ErrUnanswered, p: api.Problem{
		Status: 503, Code: api.CodeHomeUnanswered, Title: "Home unanswered", RetryAfterSeconds: retrySoon,
		Detail: "the data centre " + home + " decides about this key and did not answer: " + why + "; the outcome is unknown, repeat the call with the same token, or release it",
	}}
}
