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

// Bucket is the name of a Server's bucket.
const Bucket = "ledgers"

// Environment variables that name a server to test with, in a process of its own. Where none is set, the server is an S3
// server in the test's process.
const (
	GatewayEnv = "S3_GATEWAY"   // versitygw
	FakeGCSEnv = "GCS_SERVER"   // the program in testdata/fakegcs
	AzureEnv   = "AZURE_SERVER" // azurite-blob; "fake" is the server in the test's process
)

// kind is a kind of object storage to test with.
type kind struct {
	scheme string
	// start also returns the account that the test has there, where the kind has accounts.
	start func(t testing.TB, program string) (h http.Handler, account string)
	// environ is the environment of a client of the server at a URL.
	environ func(url, account string) map[string]string
	// inProcess is a server without a program, if there is one.
	inProcess func(t testing.TB) http.Handler
	// sign signs a request whose headers were changed, where signatures cover those.
	sign func(*http.Request)
}

var (
	s3Kind = kind{"s3", startGateway, func(url, account string) map[string]string {
		return map[string]string{"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": account, "AWS_SECRET_ACCESS_KEY": secretKey, "AWS_REGION": "us-east-1"}
	}, fakeS3, nil}
	gcsKind = kind{"gs", startFakeGCS, func(url, _ string) map[string]string {
		return map[string]string{"STORAGE_EMULATOR_HOST": url}
	}, nil, nil}
	azureKind = kind{"azblob", startAzurite, azureEnviron, newFakeAzure, signAzure}
)

// Server is a server of object storage with Faults in front of it.
type Server struct {
	scheme  string
	environ map[string]string
	*Faults
}

// chosen is the kind of the servers of this process, and the program that is one. Empty: the server in the process.
func chosen() (k kind, program string) {
	if program := os.Getenv(FakeGCSEnv); program != "" {
		return gcsKind, program
	}
	switch program := os.Getenv(AzureEnv); program {
	case "":
	case "fake":
		return azureKind, ""
	default:
		return azureKind, program
	}
	return s3Kind, os.Getenv(GatewayEnv)
}

// NewServer starts one, which ends with the test. The one in the process keeps objects in memory.
func NewServer(t testing.TB) *Server {
	k, program := chosen()
	if program == "" {
		return serve(t, k, k.inProcess(t), accessKey)
	}
	h, account := k.start(t, program)
	return serve(t, k, h, account)
}

// NewAzure starts the server for Azure in the process, whatever the environment says.
func NewAzure(t testing.TB) *Server { return serve(t, azureKind, newFakeAzure(t), accessKey) }

// BucketURL returns the URL of a prefix in the Bucket of the servers of this process.
func BucketURL(prefix string) string {
	k, _ := chosen()
	return k.scheme + "://" + Bucket + "/" + prefix
}

func serve(t testing.TB, k kind, next http.Handler, account string) *Server {
	faults := &Faults{next: next, sign: k.sign}
	srv := httptest.NewUnstartedServer(faults)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // of aborted answers
	srv.Start()
	t.Cleanup(srv.Close)
	t.Cleanup(srv.CloseClientConnections)
	return &Server{k.scheme, k.environ(srv.URL, account), faults}
}

func fakeS3(t testing.TB) http.Handler {
	backend := s3mem.New()
	if err := backend.CreateBucket(Bucket); err != nil {
		t.Fatal(err)
	}
	return gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog()), gofakes3.WithoutVersioning()).Server()
}

const accessKey, secretKey = "tests", "secret-of-tests"

// Getenv is the environment of a client of the server.
func (s *Server) Getenv(name string) string { return s.environ[name] }

// Environ is that environment for a process.
func (s *Server) Environ() []string {
	var env []string
	for name, value := range s.environ {
		env = append(env, name+"="+value)
	}
	return env
}

// Open makes a client of a prefix of the bucket.
func (s *Server) Open(t testing.TB, prefix string) object.Store {
	st, err := object.Open(s.scheme+"://"+Bucket+"/"+prefix, s.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// Faults is a handler that passes requests to another one, and injects faults. The zero
// value of a setting is no fault. Settings may change at any time.
type Faults struct {
	next http.Handler
	sign func(*http.Request)

	// Away drops every connection.
	Away atomic.Bool
	// LostPuts of 1000 writes happen, and their answers are lost; Refused of 1000
	// requests get 503; Conflicts of 1000 conditional writes get a 412 that is wrong.
	LostPuts, Refused, Conflicts atomic.Int64
	// Slow delays each request by so many milliseconds.
	Slow atomic.Int64
	// StaleLists repeats the first answer to each listing since it was set.
	StaleLists atomic.Bool
	// NoIfMatch and NoIfNoneMatch make the server ignore that condition, as older ones do, or the one of GCS that means the same.
	NoIfMatch, NoIfNoneMatch atomic.Bool

	// Requests counts all requests, Lists the listings while StaleLists is set,
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
	write := r.Method == http.MethodPut || r.Method == http.MethodPost
	generation := r.URL.Query().Get("ifGenerationMatch")
	conditional := r.Header.Get("If-Match") != "" || r.Header.Get("If-None-Match") != "" || generation != ""
	switch {
	case chance(&f.Refused):
		f.refuse(w, http.StatusServiceUnavailable, "SlowDown")
		return
	case write && conditional && chance(&f.Conflicts):
		f.refuse(w, http.StatusPreconditionFailed, "PreconditionFailed")
		return
	case write && chance(&f.LostPuts):
		f.next.ServeHTTP(httptest.NewRecorder(), r)
		drop()
	case r.Method == http.MethodGet && isList(r) && f.StaleLists.Load():
		f.stale(w, r)
		return
	}
	if f.NoIfMatch.Load() {
		r.Header.Del("If-Match")
	}
	if f.NoIfNoneMatch.Load() {
		r.Header.Del("If-None-Match")
	}
	if generation == "0" && f.NoIfNoneMatch.Load() || generation != "0" && generation != "" && f.NoIfMatch.Load() {
		query := r.URL.Query()
		query.Del("ifGenerationMatch")
		r.URL.RawQuery = query.Encode()
	}
	if f.sign != nil && (f.NoIfMatch.Load() || f.NoIfNoneMatch.Load()) {
		f.sign(r)
	}
	f.next.ServeHTTP(w, r)
}

// isList reports whether a request is a listing of S3, GCS or Azure.
func isList(r *http.Request) bool {
	return r.URL.Query().Get("comp") == "list" || r.URL.Query().Get("list-type") == "2" || strings.HasSuffix(r.URL.Path, "/o") && strings.HasPrefix(r.URL.Path, "/storage/v1/b/")
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
