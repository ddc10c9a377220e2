package config

import (
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// Ledger says who decides whether a request may run.
type Ledger uint8

// The ledgers.
const (
	// LedgerManager: the manager decides; the gate calls it on a cache miss.
	LedgerManager Ledger = iota
	// LedgerUpstream: upstream keeps the ledger itself, so the gate caches
	// and coalesces but makes no callouts.
	LedgerUpstream
	// LedgerNone: only the gate's cache decides. A lost cache means lost
	// protection.
	LedgerNone
)

// Mode says when the gate decides.
type Mode uint8

// The modes.
const (
	// ModeHeaders decides on the request headers. It works on any Envoy.
	ModeHeaders Mode = iota
	// ModeBody decides after the request body. It needs Envoy 1.35 or newer with
	// allow_on_headers_stop_iteration.
	ModeBody
)

// Derive says how a key is made from the payload when the client sends none.
type Derive uint8

// The ways to derive a key.
const (
	DeriveNone   Derive = iota // keys are not derived
	DeriveMD5                  // hex MD5 of the payload
	DeriveSHA256               // hex SHA-256 of the payload
)

// Format says which keys are accepted.
type Format uint8

// The formats.
const (
	FormatAny        Format = iota // any key, see api.ValidKey
	FormatUUID                     // 8-4-4-4-12 hex digits only
	FormatStructured               // {client_id}:{sequence}:{nonce} only
	FormatPattern                  // what matches Key.Pattern only
)

// FailureMode says what happens while the manager cannot be reached.
type FailureMode uint8

// The failure modes.
const (
	FailClosed FailureMode = iota // 503 with Retry-After
	FailOpen                      // forward unprotected, marked as bypassed
)

// Unsupported says what happens to a request that has a key or must have one, but cannot
// be protected, because it opens something without a single answer: CONNECT, a protocol
// upgrade, gRPC.
type Unsupported uint8

// The values of Unsupported.
const (
	UnsupportedRefuse Unsupported = iota // 400
	UnsupportedPass                      // forward unprotected, marked as bypassed
)

// GRPC says which gRPC calls of a route are protected.
type GRPC uint8

// The values of GRPC.
const (
	GRPCNone  GRPC = iota // none; Unsupported says what happens to them
	GRPCUnary             // all, because all methods of the route are unary
)

// CommitMode says whether the client's answer waits for the commit.
type CommitMode uint8

// The commit modes.
const (
	CommitBeforeReply CommitMode = iota // the answer is released after the commit
	CommitAsync                         // the answer does not wait
)

// ClientAbort says what happens to a request whose client leaves before it is answered.
type ClientAbort uint8

// The values of ClientAbort.
const (
	// abortDefault: AbortContinue in ModeBody with an upstream.cluster, else AbortCancel. Parsed routes do not have it.
	abortDefault ClientAbort = iota
	// AbortCancel: the router carries the request, and the proxy cancels it.
	AbortCancel
	// AbortContinue: the gate makes the upstream call itself, so the call continues and its answer is
	// recorded. Only in ModeBody.
	AbortContinue
)

// Key says where a request's key comes from. The sources are tried in the
// order header, JSON path, derivation; the first that has a key wins.
type Key struct {
	// Header is the lower-case name of the header; empty: not from a header.
	Header string
	// JSONPath is a plain gjson path into the body; empty: not from the body. Only
	// in ModeBody.
	JSONPath string
	// Derive makes a key from the body. Only in ModeBody.
	Derive Derive
	// Required: a request without a key gets 400 instead of passing unprotected.
	Required bool
	// Sources are the parts of a key that comes from several sources; empty: Header, JSONPath and Derive count. Header
	// is then the name of a source that says whether a request has a key, if one is a header; see Tells.
	Sources []Source
	// Format restricts what a key may look like, or the first of its parts.
	Format Format
	// Pattern is set for FormatPattern.
	Pattern *Pattern
}

// Manager says how the manager is called.
type Manager struct {
	// Shards are Envoy's names of the managers' clusters, one for each ledger, at least one; see api.Owner.
	Shards []string
	// Named: Shards come from manager.shards, so the managers have these names as well.
	Named bool
	// Previous are the Shards before a change, as long as keys may still be there; else empty.
	Previous []string
	// Authority is the :authority of the calls.
	Authority string
	// Timeout bounds a call, without the time for which it waits for a pending entry.
	Timeout time.Duration
	// AuthToken is sent as a bearer token; empty: none is sent. See Token.
	AuthToken string
	// AuthTokenEnv names the environment variable that has the token instead of AuthToken; empty: none.
	AuthTokenEnv string
}

// Upstream says how the gate makes its own upstream calls; see AbortContinue.
type Upstream struct {
	// Cluster is Envoy's name of the cluster to call; empty: the cluster of the request's route.
	Cluster string
	// Timeout bounds a call.
	Timeout time.Duration
}

// CommitRetry bounds the repetition of calls that did not reach the manager.
type CommitRetry struct {
	// Initial is the first delay; each further one is twice as long.
	Initial time.Duration
	// Max bounds the delay.
	Max time.Duration
	// MaxQueued bounds the calls that one VM keeps for repetition.
	MaxQueued int
}

// Config is a whole configuration: the settings that are the same for all routes,
// and the rules that lead to a Route. Nothing changes it after Parse.
type Config struct {
	Manager     Manager
	CommitRetry CommitRetry
	// MaxEntries bounds the cache's entries, MaxBytes the bytes of its values.
	MaxEntries int
	MaxBytes   int
	// MaxWaiters bounds the duplicates that wait in one VM.
	MaxWaiters int
	// MaxUpstreamCalls bounds the upstream calls that one VM has under way.
	MaxUpstreamCalls int
	// CleanupInterval is the time between two sweeps of the cache.
	CleanupInterval time.Duration
	// ScopeSecret is the HMAC key of the digests of scopes and fingerprints; empty: plain SHA-256.
	ScopeSecret string
	// ScopeSecretEnv names the environment variable that has the key instead of ScopeSecret; empty: none.
	ScopeSecretEnv string
	// Lookup is the path at which clients look up what became of their requests; empty: there is none.
	Lookup string

	rules []rule
}

// Route has all settings that may differ between routes, fully merged: a rule's
// own fields, then those of the top level, then the defaults.
type Route struct {
	// Index is the position of the rule in match, for metrics and logs.
	Index  int
	Ledger Ledger
	// Durability is what the ledger is asked for.
	Durability api.Durability
	Mode       Mode
	Key        Key
	Scope      []ScopePart
	// Anonymous says what becomes of a request that lacks what Scope needs to distinguish callers.
	Anonymous Anonymous
	// Fingerprint says what a retry must repeat.
	Fingerprint Fingerprint
	// PendingTTL is how long a reservation holds.
	PendingTTL time.Duration
	// CommittedTTL and RejectedTTL are how long an outcome is remembered. UnknownTTL is how long a key stays taken if
	// its request may have run and its outcome is unknown; 0: until its reservation runs out. Each may be ManagersTTL
	// where the manager is the ledger.
	CommittedTTL, RejectedTTL, UnknownTTL time.Duration
	// WaitForPending: a duplicate of a running request waits for its answer, for
	// PendingWait at most, and then gets 409. Without it the duplicate gets 409
	// immediately.
	WaitForPending bool
	PendingWait    time.Duration
	// MaxRequestBody is how many bytes of a request's body are digested. MaxResponseBody
	// is the largest body of an answer that is recorded, in bytes.
	MaxRequestBody, MaxResponseBody int
	// StreamedTypes are the media types of answers that pass as they come and are
	// recorded without their bodies; see Streamed.
	StreamedTypes []string
	FailureMode   FailureMode
	ClientAbort   ClientAbort
	// RespondAsync: a client that prefers respond-async gets 202, and looks up the answer at Config.Lookup.
	RespondAsync bool
	// FreeIncomplete: a request whose client left before upstream had all of its body frees its key. Otherwise its outcome
	// is unknown.
	FreeIncomplete bool
	Upstream       Upstream
	Unsupported    Unsupported
	GRPC           GRPC
	Commit         CommitMode
	Outcomes       Outcomes
	Response       Response
	// ReplayHeader is the lower-case name of the header that marks replays.
	ReplayHeader string
	Problems     Problems
	// LifetimePath is the path of the JSON answers to GET to which the gate adds LifetimeMember, with CommittedTTL; empty:
	// there is none.
	LifetimePath string
	// Resumable: upstream continues an attempt that it has begun, so an unknown outcome frees the key.
	Resumable bool
	// JSONRPC: bodies are JSON-RPC 2.0. A replay has the id of the request that it answers, and batches are refused.
	JSONRPC bool
	// OutcomeHeader is the lower-case name of the answer's header that says what the answer
	// means; see Outcome. Empty: the status alone decides.
	OutcomeHeader string
	// Forward says what upstream gets to know.
	Forward Forward
}

// Streamed reports whether answers of this media type pass as they come. media must be in
// lower case and without parameters. In StreamedTypes, a type that ends in * stands for
// all types with that beginning.
func (t *Route) Streamed(media string) bool {
	return listed(t.StreamedTypes, media)
}

// Method reports whether some rule may match requests with this method. If none does,
// the caller need not look at the path.
func (c *Config) Method(method string) bool {
	for i := range c.rules {
		if c.rules[i].matchMethod(method) {
			return true
		}
	}
	return false
}

// Route returns the settings of the first rule that matches; nil: none does, and
// the request passes. path is :path as sent; its query is ignored. The Route is
// shared and must not be changed.
func (c *Config) Route(method, path string) *Route {
	for i := range path {
		if path[i] == '?' || path[i] == '#' {
			path = path[:i]
			break
		}
	}
	for i := range c.rules {
		if c.rules[i].matches(method, path) {
			return &c.rules[i].route
		}
	}
	return nil
}

// LongestTTL is the longest time for which a route wants a key to be remembered, as far as the configuration says.
func (c *Config) LongestTTL() (d time.Duration) {
	for i := range c.rules {
		r := &c.rules[i].route
		for _, ttl := range [...]time.Duration{r.CommittedTTL, r.RejectedTTL, r.UnknownTTL} {
			d = max(d, ttl) // ManagersTTL is negative
		}
	}
	return d
}

// LargestAnswer returns the largest MaxResponseBody of all routes.
func (c *Config) LargestAnswer() int {
	n := 0
	for i := range c.rules {
		n = max(n, c.rules[i].route.MaxResponseBody)
	}
	return n
}
