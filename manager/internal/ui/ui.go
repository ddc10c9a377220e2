package ui

import (
	"cmp"
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/journal"
	"github.com/oncegate/oncegate/manager/internal/schedules"
)

// Options configure New.
type Options struct {
	// Version of the manager.
	Version string
	// Log receives what goes wrong, default slog.Default(). Audit receives what people change and
	// which recorded bodies they look at, default Log.
	Log, Audit *slog.Logger
	// Auth knows the tokens; nil asks for none.
	Auth *httpd.Auth
	// Problem returns the answer to an error; nil makes every error an internal one.
	Problem func(error) api.Problem
	// Ledger, Queue and Schedules are what the pages are about.
	Ledger    *ledger.Ledger
	Queue     *jobs.Queue
	Schedules *schedules.Schedules
	// Journal is the ledger's observer; nil: it has none.
	Journal *journal.Journal
	// NotReady returns why the manager takes no calls, "" when it does. Nil: it always does.
	NotReady func() string
	// Quarantine returns the manager's quarantine, nil when there is none. Nil: there never is.
	Quarantine func() *Quarantine
	// Origin is the name of the manager's data centre; "" without others.
	Origin string
	// System describes the manager; nil describes nothing.
	System func(context.Context) System
	// Hosts are names of the manager, beside localhost, names without a dot and IP addresses. Where no token is asked for,
	// the pages are answered under no other name.
	Hosts []string
	// Clock is the present time, default time.Now.
	Clock func() time.Time
}

// UI is the handler of the pages. It serves the paths below /ui/; http.StripPrefix mounts it
// elsewhere.
type UI struct {
	opts     Options
	started  time.Time
	handler  http.Handler
	sessions sessions
	secret   [32]byte // of the CSRF tokens
	feeds    feeds
	origins  *http.CrossOriginProtection

	base context.Context // ends with Close
	stop context.CancelFunc
	mu   sync.Mutex // of gone
	busy sync.WaitGroup
	gone bool
}

//go:embed static
var staticFiles embed.FS

// New returns the pages of a manager. Close ends them.
func New(o Options) (*UI, error) {
	if o.Ledger == nil || o.Queue == nil || o.Schedules == nil || o.Version == "" {
		return nil, errors.New("ui: needs Version, Ledger, Queue and Schedules")
	}
	o.Log = cmp.Or(o.Log, slog.Default())
	o.Audit = cmp.Or(o.Audit, o.Log)
	if o.Clock == nil {
		o.Clock = time.Now
	}
	u := &UI{opts: o, started: o.Clock(), origins: http.NewCrossOriginProtection()}
	u.sessions.clock = o.Clock
	_, _ = rand.Read(u.secret[:]) // never fails: it ends the program instead
	u.base, u.stop = context.WithCancel(context.Background())
	u.feeds.init()
	static, err := fs.Sub(staticFiles, "static")
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	files := http.StripPrefix("/ui/static/", http.FileServerFS(static))
	mux.HandleFunc("GET /ui/static/{file}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-cache") // a new version has the same names
		files.ServeHTTP(w, r)
	})
	for _, r := range routes {
		mux.HandleFunc(r.method+" /ui/"+r.path, func(w http.ResponseWriter, req *http.Request) { u.serve(r, w, req) })
	}
	mux.HandleFunc("/ui/", func(w http.ResponseWriter, req *http.Request) { // of any other path
		u.serve(route{handle: (*UI).notFound}, w, req)
	})
	u.handler = mux
	return u, nil
}

// Close ends what is being answered, and returns when nothing is left of it.
func (u *UI) Close() {
	u.mu.Lock()
	u.gone = true
	u.mu.Unlock()
	u.stop()
	u.busy.Wait()
}

// enter reports whether one more request may begin; leave ends it.
func (u *UI) enter() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.gone {
		return false
	}
	u.busy.Add(1)
	return true
}

// contentPolicy allows nothing that is not a file of the manager's own.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// workTimeout bounds the work for one page, and maxFormBytes the body of a form. The largest form is that of a bulk
// action: maxBulk ids of jobs.MaxIDBytes, of which an encoded byte takes three.
const (
	workTimeout  = 10 * time.Second
	maxFormBytes = 512 << 10
)

// ServeHTTP implements http.Handler.
func (u *UI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !u.enter() {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	defer u.busy.Done()
	h := w.Header()
	h.Set(api.HeaderManager, u.opts.Version)
	h.Set("Content-Security-Policy", contentPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin") // addresses hold keys
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	u.handler.ServeHTTP(w, r)
}

// route is a method and a path below /ui/ in the form of http.ServeMux.
type route struct {
	method, path string
	// roles that may use it, administrators apart; 0: everyone who may see the pages.
	roles httpd.Role
	// open routes need no session and no CSRF token.
	open bool
	// stream: the route answers for as long as the viewer looks.
	stream bool
	handle func(*UI, *visit) error
}

// serve answers one request: session, rights, CSRF token, handler.
func (u *UI) serve(rt route, w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	if !rt.stream {
		ctx, cancel = context.WithTimeout(r.Context(), workTimeout)
	}
	defer cancel()
	defer context.AfterFunc(u.base, cancel)()
	r = r.WithContext(ctx)
	v := &visit{ui: u, w: w, r: r, stream: rt.stream, Root: "./" + strings.Repeat("../", strings.Count(strings.TrimPrefix(r.URL.EscapedPath(), "/ui/"), "/"))}
	if !u.opts.Auth.TokensAsked() && !httpd.OwnName(r.Host, u.opts.Hosts) {
		v.problem(&api.Problem{Status: http.StatusMisdirectedRequest, Code: api.CodeForbidden, Title: "Unknown name", Detail: "the manager does not know the name " + httpd.Clip(r.Host) +
			". Open the page by an IP address, by localhost, by a name without a dot, or by the name in --admin. With --auth-token-file every name works. This keeps pages of other sites out"})
		return
	}
	known := u.identify(v)
	if r.Method == http.MethodPost {
		r.Body = http.MaxBytesReader(w, r.Body, maxFormBytes)
		if err := u.origins.Check(r); err != nil {
			v.problem(&api.Problem{Status: 403, Code: api.CodeForbidden, Title: "Forbidden", Detail: "this form was sent by a page of another site"})
			return
		}
		if err := r.ParseForm(); err != nil {
			status := 400
			if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
				status = 413
			}
			v.problem(&api.Problem{Status: status, Code: api.CodeInvalidRequest, Title: "Form not understood", Detail: "the form is larger than it can be, or malformed"})
			return
		}
	}
	switch {
	case rt.open:
	case !known:
		v.askForToken()
		return
	case r.Method == http.MethodPost && !u.formIsOurs(v):
		v.problem(&api.Problem{Status: 403, Code: api.CodeForbidden, Title: "Forbidden", Detail: "this form is too old, or it does not come from this page. Open the page again and repeat what you did"})
		return
	case rt.roles != 0 && !v.person.May(rt.roles):
		v.problem(&api.Problem{Status: 403, Code: api.CodeForbidden, Title: "Forbidden", Detail: "your token does not allow this"})
		return
	}
	if err := rt.handle(u, v); err != nil {
		v.fail(err)
	}
}

func (u *UI) notFound(v *visit) error {
	return &httpd.Refusal{P: api.Problem{Status: 404, Code: api.CodeNotFound, Title: "Not found", Detail: "there is no such page"}}
}
