package objecttest

import (
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/oncegate/oncegate/manager/internal/object"
)

// Bucket is the one that a Server has.
const Bucket = "ledgers"

// Server is an S3 server behind Faults: one in the test's process, or the program that GatewayEnv names.
type Server struct {
	URL string
	*Faults
}

// NewServer starts one, which ends with the test. The one in the process keeps objects in memory.
func NewServer(t testing.TB) *Server {
	var next http.Handler
	if program := os.Getenv(GatewayEnv); program != "" {
		next = startGateway(t, program)
	} else {
		next = inProcess(t)
	}
	faults := &Faults{next: next}
	srv := httptest.NewUnstartedServer(faults)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // of aborted answers
	srv.Start()
	t.Cleanup(srv.Close)
	t.Cleanup(srv.CloseClientConnections)
	return &Server{srv.URL, faults}
}

func inProcess(t testing.TB) http.Handler {
	backend := s3mem.New()
	if err := backend.CreateBucket(Bucket); err != nil {
		t.Fatal(err)
	}
	return gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog()), gofakes3.WithoutVersioning()).Server()
}

const accessKey, secretKey = "tests", "secret-of-tests"

// Getenv is the environment of a client of the server.
func (s *Server) Getenv(name string) string {
	switch name {
	case "AWS_ENDPOINT_URL":
		return s.URL
	case "AWS_ACCESS_KEY_ID":
		return accessKey
	case "AWS_SECRET_ACCESS_KEY":
		return secretKey
	case "AWS_REGION":
		return "us-east-1"
	}
	return ""
}

// Environ is that environment for a process.
func (s *Server) Environ() []string {
	var env []string
	for _, name := range []string{"AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"} {
		env = append(env, name+"="+s.Getenv(name))
	}
	return env
}

// Open makes a client of a prefix of the bucket.
func (s *Server) Open(t testing.TB, prefix string) object.Store {
	st, err := object.Open("s3://"+Bucket+"/"+prefix, s.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// Faults is a handler that has faults in place of the one behind it. The zero
// value of a setting is no fault. Settings may change at any time.
type Faults struct {
	next http.Handler

	// Away drops every connection.
	Away atomic.Bool
	// LostPuts of 1000 writes happen, and their answers are lost; Refused of 1000
	// requests get 503; Conflicts of 1000 conditional writes get a 412 that is wrong.
	LostPuts, Refused, Conflicts atomic.Int64
	// Slow is how long each request takes longer, in milliseconds.
	Slow atomic.Int64
	// StaleLists answers each listing as it was asked for the first time since it
	// was set.
	StaleLists atomic.Bool
	// NoIfMatch and NoIfNoneMatch make the server ignore that condition, as older ones do.
	NoIfMatch, NoIfNoneMatch atomic.Bool

	// Requests counts what arrived, Lists the listings that were stale or are to be,
	// Injected the faults.
	Requests, Lists, Injected atomic.Int64

	mu    sync.Mutex
	lists map[string]*httptest.ResponseRecorder
}

// Default sets every kind of fault that a client must live with, at rates that let
// most requests through.
func (f *Faults) Default() {
	f.LostPuts.Store(30)
	f.Refused.Store(30)
	f.Conflicts.Store(30)
	f.StaleLists.Store(true)
}

func chance(of *atomic.Int64) bool { return rand.Int64N(1000) < of.Load() }

func (f *Faults) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.Requests.Add(1)
	drop := func() {
		f.Injected.Add(1)
		panic(http.ErrAbortHandler)
	}
	if f.Away.Load() {
		drop()
	}
	if ms := f.Slow.Load(); ms > 0 {
		f.Injected.Add(1)
		select {
		case <-time.After(time.Duration(ms) * time.Millisecond):
		case <-r.Context().Done():
			return
		}
	}
	conditional := r.Header.Get("If-Match") != "" || r.Header.Get("If-None-Match") != ""
	switch {
	case chance(&f.Refused):
		f.refuse(w, http.StatusServiceUnavailable, "SlowDown")
		return
	case r.Method == http.MethodPut && conditional && chance(&f.Conflicts):
		f.refuse(w, http.StatusPreconditionFailed, "PreconditionFailed")
		return
	case r.Method == http.MethodPut && chance(&f.LostPuts):
		f.next.ServeHTTP(httptest.NewRecorder(), r)
		drop()
	case r.Method == http.MethodGet && strings.Contains(r.URL.RawQuery, "list-type=2") && f.StaleLists.Load():
		f.stale(w, r)
		return
	}
	if f.NoIfMatch.Load() {
		r.Header.Del("If-Match")
	}
	if f.NoIfNoneMatch.Load() {
		r.Header.Del("If-None-Match")
	}
	f.next.ServeHTTP(w, r)
}

func (f *Faults) refuse(w http.ResponseWriter, status int, code string) {
	f.Injected.Add(1)
	body := `<?xml version="1.0" encoding="UTF-8"?><Error><Code>` + code + `</Code><Message>a fault of the test</Message></Error>`
	w.Header().Set("Content-Type", "application/xml")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

func (f *Faults) stale(w http.ResponseWriter, r *http.Request) {
	f.Lists.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.lists[r.URL.String()]
	if old == nil {
		old = httptest.NewRecorder()
		f.next.ServeHTTP(old, r)
		if f.lists == nil {
			f.lists = make(map[string]*httptest.ResponseRecorder)
		}
		f.lists[r.URL.String()] = old
	} else {
		f.Injected.Add(1)
	}
	for name, values := range old.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(old.Code)
	_, _ = w.Write(old.Body.Bytes())
}
