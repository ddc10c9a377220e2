package api

import (
	"slices"
	"time"
)

// Paths of the ledger calls; all of them are POST.
const (
	PathReserve = "/v1/ledger/reserve"
	PathCommit  = "/v1/ledger/commit"
	PathReject  = "/v1/ledger/reject"
	PathRelease = "/v1/ledger/release"
	// PathRenew extends the reservation of the request's token to PendingTTL from now. Its body is a ReserveRequest
	// without Wait.
	PathRenew = "/v1/ledger/renew"
	// PathUnknown ends the reservation of the request's token: the work may have run, and its outcome is not known. Its
	// body is a ReserveRequest without PendingTTL and Wait.
	PathUnknown = "/v1/ledger/unknown"
	// PathLookUp tells what became of a key, and changes nothing. Its body is a ReleaseRequest without Token, the answer a
	// ReserveReply whose State is StateNone if the key is not known.
	PathLookUp = "/v1/ledger/lookup"
	// PathHome and the name of a call make that call at the home of a global key. Managers of other data centres use it.
	PathHome = "/v1/ledger/home/"
)

// PathAnswer is where the gate sends the retry of a gRPC call whose recorded answer has a message. The answer that comes
// back, from a route of the proxy or from the manager, is a blank that the gate fills in: 200 with any body and HeaderBlank.
const PathAnswer = "/oncegate/answer"

// Header names, in the lower case that HTTP/2 and Envoy use.
const (
	// HeaderManager is set by the manager on every answer; its value is the manager's version. An answer to a callout
	// without it comes from a proxy on the way and says nothing about the ledger.
	HeaderManager = "oncegate-manager"
	// HeaderIdempotencyKey carries the client's key.
	HeaderIdempotencyKey = "idempotency-key"
	// HeaderLedger is in the manager's answers: the ledger's Mark. A caller sends the last one that it got with its next call.
	// A manager whose ledger is behind it takes no new keys for as long as the forgotten ones count (CodeQuarantine), or
	// refuses the call (CodeWrongLedger).
	HeaderLedger = "oncegate-ledger"
	// HeaderShard on a ledger call names the shard that the call is meant for. A manager of another shard rejects the
	// call.
	HeaderShard = "oncegate-shard"
	// HeaderDataCentres on a call for changes, and on its answer, is the sender's name and list: "dc1=dc1,dc2".
	HeaderDataCentres = "oncegate-data-centres"
	// HeaderPeerLedger on a call for changes is the Mark of the caller's own ledger. HeaderKnownLedger on its answer is what
	// the answering data centre remembers of the caller's: a Mark, a semicolon, and for how many milliseconds it has not
	// answered.
	HeaderPeerLedger  = "oncegate-peer-ledger"
	HeaderKnownLedger = "oncegate-known-ledger"
	// HeaderReplayed is "true" on a recorded answer.
	HeaderReplayed = "idempotent-replayed"
	// HeaderStatus says what the gate did: executed, replayed, bypassed or a problem's code.
	HeaderStatus = "idempotency-status"
	// HeaderBlank marks an answer that the gate may replace by a recorded one.
	HeaderBlank = "oncegate-blank"
)

// Content types.
const (
	ContentTypeJSON    = "application/json"
	ContentTypeProblem = "application/problem+json"
	ContentTypeRaw     = "application/vnd.oncegate.v1"
)

// Bounds that both sides enforce.
const (
	// MaxKeyBytes bounds a client's key, see ValidKey.
	MaxKeyBytes = 255
	// MaxScopeBytes bounds a scope: up to 255 bytes of visible ASCII.
	MaxScopeBytes = 255
	// MaxTokenBytes bounds a token: 1 to 64 bytes of visible ASCII.
	MaxTokenBytes = 64
	// MaxFingerprintBytes bounds a fingerprint: up to 128 bytes of visible ASCII.
	MaxFingerprintBytes = 128
	// MaxStatus is the largest status of a result. Nothing defines those from 600 on, but servers send them, and clients take
	// them for 5xx (RFC 9110, 15).
	MaxStatus = 999
	// MaxResultHeaders bounds the number of headers in a result.
	MaxResultHeaders = 256
	// MaxResultHeaderBytes bounds the sum of names and values of a result's headers.
	MaxResultHeaderBytes = 64 << 10
	// MaxTTL bounds every duration a request may ask for.
	MaxTTL = 366 * 24 * time.Hour
)

// NoUnknown as an UnknownTTL frees the key when its reservation runs out without an outcome.
const NoUnknown time.Duration = -1

// State of a ledger entry.
type State uint8

// The states of an entry, and the two that only answers have.
const (
	// StateNone: no entry.
	StateNone State = iota
	// StatePending: reserved, the outcome is not known yet.
	StatePending
	// StateCommitted: the work ran and its answer is recorded. Final.
	StateCommitted
	// StateRejected: the work was refused and the refusal is recorded. Final.
	StateRejected
	// StateReserved is the answer to the reserve that created the entry.
	StateReserved
	// StateReleased is the answer to a release.
	StateReleased
	// StateUnknown: the work may have run, and its outcome is not known. A late outcome with the same token, or an
	// operator, replaces it. No other attempt runs until the entry expires.
	StateUnknown
)

var stateNames = [...]string{"none", "pending", "committed", "rejected", "reserved", "released", "unknown"}

// String returns the state's name on the wire, "invalid" for an unknown one.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "invalid"
}

// ParseState is the inverse of String.
func ParseState(name string) (State, bool) {
	i := slices.Index(stateNames[:], name)
	return State(max(i, 0)), i >= 0
}

// Terminal reports whether the state is final: committed or rejected.
func (s State) Terminal() bool { return s == StateCommitted || s == StateRejected }

// Header is one response header. Its name is in lower case. In JSON it is [name, value].
type Header struct {
	Name, Value string
}

// Result is a recorded answer. JSON strings are Unicode, so it cannot hold a header value there that is not UTF-8. The raw
// form holds any bytes.
type Result struct {
	// Status is the HTTP status, 100 to MaxStatus.
	Status int `json:"status" wrong:"must be 100 to 999"`
	// Headers are the end-to-end headers in their original order.
	Headers []Header `json:"headers" max:"256" text:"unicode" wrong:"must be an array of [name, value]"`
	// Body is the whole body, in base64 in JSON; empty when BodyOmitted.
	Body []byte `json:"body" wrong:"must be base64 with padding"`
	// BodyOmitted: the body was larger than the limit and was not recorded. Later duplicates get 410, never a partial
	// body.
	BodyOmitted bool `json:"body_omitted,omitempty"`
}

// ReserveRequest asks for the right to run the work of (Scope, Key) once.
type ReserveRequest struct {
	Key   string `json:"key"`
	Scope string `json:"scope,omitempty"`
	// Token identifies this attempt. Two calls with the same (key, token) are the same call.
	Token string `json:"token"`
	// Fingerprint is a digest of the request. Two requests with the same key that are not the same by SameRequest are a
	// client's mistake. Empty: not compared.
	Fingerprint string `json:"fingerprint,omitempty"`
	// PendingTTL is how long the reservation lasts; 0 means the manager's default.
	PendingTTL time.Duration `json:"pending_ttl_ms,omitempty" zero:"must be a whole number from 1 to 31622400000" wrong:"must be a whole number from 1 to 31622400000"`
	// Wait is how long the call may wait while another attempt is pending; 0 means not at all. The manager bounds it.
	Wait time.Duration `json:"wait_ms,omitempty" wrong:"must be a whole number from 0 to 31622400000"`
	// UnknownTTL is how long the key is remembered as StateUnknown after the reservation ran out without an outcome; 0
	// means the manager's default, NoUnknown not at all, which is 0 in JSON.
	UnknownTTL time.Duration `json:"unknown_ttl_ms,omitempty" none:"0" wrong:"must be a whole number from 0 to 31622400000"`
	// Durability says how far the key is protected. A renew or unknown of a global key needs it where the manager may no
	// longer have noted the reservation.
	Durability Durability `json:"durability,omitempty" wrong:"must be local, region or global"`
}

// ReserveReply answers a reserve.
type ReserveReply struct {
	// State is StateReserved (run the work), StateCommitted or StateRejected
	// (Result is the recorded answer) or StatePending (another attempt runs).
	State State
	// ExpiresIn is how long the reservation, or the other attempt's, still lasts; for a final state how long the entry
	// will be remembered. In the raw form, a manager with peers says at most for how long a gate may answer from its
	// cache; then the answer to a commit or reject has it, too.
	ExpiresIn time.Duration
	// Result is set for final states.
	Result Result
}

// FinishRequest ends a reservation with its outcome: commit or reject.
type FinishRequest struct {
	Key   string `json:"key"`
	Scope string `json:"scope,omitempty"`
	Token string `json:"token"`
	// Fingerprint repeats the reservation's, for an outcome that arrives after the reservation is gone and is recorded
	// late. May be empty.
	Fingerprint string `json:"fingerprint,omitempty"`
	// TTL is how long the outcome is remembered; 0 means the manager's default.
	TTL time.Duration `json:"ttl_ms,omitempty" zero:"must be a whole number from 1 to 31622400000" wrong:"must be a whole number from 1 to 31622400000"`
	// Durability is the reservation's. A late outcome of a global key needs it: the manager may no longer have noted the
	// reservation, and only the key's home may record the outcome then.
	Durability Durability `json:"durability,omitempty" wrong:"must be local, region or global"`
	Result     Result     `json:"result"`
}

// ReleaseRequest ends a reservation whose work did not run.
type ReleaseRequest struct {
	Key   string `json:"key"`
	Scope string `json:"scope,omitempty"`
	Token string `json:"token"`
	// Durability is that of the reserve. Only DurabilityGlobal matters, for a reserve whose answer was lost.
	Durability Durability `json:"durability,omitempty" wrong:"must be local, region or global"`
}
