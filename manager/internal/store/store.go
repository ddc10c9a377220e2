// Package store is the contract between Oncegate's domain (ledger, jobs) and
// the engines that keep its records. The domain is written once against Store
// and Tx; an engine is an adapter that passes the conformance suite in
// storetest.
//
// A store holds records in collections. A record has a key, a value and any
// number of index entries; an index of a collection is the ordered set of
// (sort key, record key) pairs its records declare. There are no queries
// beyond Get and an ordered index scan, so that the same domain code runs on a
// B-tree under a lock, on SQL tables and on Redis.
//
// # Transactions
//
// Update runs a function in a read-write transaction: all of its writes become visible and durable together, or none
// does. Transactions are serializable with respect to the records they Get: if a record that the function read was
// changed meanwhile, the engine runs the function again. The function must therefore be pure: it may read the
// transaction, build values, and assign results to variables that it resets at its start, and nothing else.
//
// Scans are hints. An engine may serve them from state that is slightly stale and lacks the transaction's own writes
// (Redis cannot watch a range). Before a caller acts on a hit, it must Get the record in the same transaction and check
// it.
//
// # Durability
//
// When Update returns nil, the transaction survives whatever the engine promises in its Capabilities. No call, View
// included, returns state that a crash could still undo: an engine that applies writes before they are durable delays
// readers of such state until they are.
package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Limits that every engine enforces alike, so that a program that runs on one engine runs on all of them.
const (
	// MaxKeyBytes bounds a record key, an index sort key and a topic.
	MaxKeyBytes = 1024
	// MaxValueBytes bounds one record's value.
	MaxValueBytes = 8 << 20
	// MaxTxBytes bounds the sum of keys, index entries and values one
	// transaction writes.
	MaxTxBytes = 32 << 20
	// MaxScan bounds the hits of one scan.
	MaxScan = 10000
)

// Errors that engines return, possibly wrapped; test with errors.Is.
var (
	// ErrNotFound is returned by Tx.Get for an absent record.
	ErrNotFound = errors.New("store: record not found")
	// ErrConflict is returned by Update when every run that the engine allows met a concurrent change. Nothing was
	// written.
	ErrConflict = errors.New("store: too many conflicting transactions")
	// ErrTooLarge is returned by Put, or by Update, when a key, value or transaction exceeds the limits above. Nothing
	// was written.
	ErrTooLarge = errors.New("store: record or transaction too large")
	// ErrReadOnly is returned by Put and Delete inside View.
	ErrReadOnly = errors.New("store: write in a read-only transaction")
	// ErrNoSpace is returned by Update when the medium is full. Nothing was written, reads still work, and a later
	// Update succeeds once there is space.
	ErrNoSpace = errors.New("store: no space left")
	// ErrFull is an ErrNoSpace: a shared engine's server has a limit of its own, and an operator must make space.
	ErrFull = fmt.Errorf("%w: the store is full", ErrNoSpace)
	// ErrUnused is returned by Open of a shared engine that is to create nothing, for a server that no manager has used.
	ErrUnused = errors.New("no manager has used this store")
	// ErrUnavailable is returned when a remote engine cannot be reached. The outcome of an Update that returns it may
	// be unknown.
	ErrUnavailable = errors.New("store: engine unavailable")
	// ErrUnreached comes with ErrUnavailable if a call failed before it sent any writes: nothing was changed.
	ErrUnreached = errors.New("nothing was changed")
	// ErrFailed is returned by every call after the engine stopped for good, for example after a failed fsync (see
	// Store.Failed). The outcome of an Update that returns it is unknown.
	ErrFailed = errors.New("store: engine failed")
	// ErrUnconfirmed is an error of the context as well: an engine with Capabilities.Shared false returns it from an Update
	// whose context ended before its writes were durable. Later transactions see the writes. Only a crash, or a failure of
	// the medium, can undo them.
	ErrUnconfirmed = errors.New("store: not durable yet")
	// ErrClosed is returned by calls after Close.
	ErrClosed = errors.New("store: closed")
)

// Unknown reports whether an Update that failed with err may have happened nevertheless. Then only its caller can decide to
// run it again: another process may already have worked on what it wrote.
func Unknown(err error) bool {
	for _, e := range []error{ErrUnavailable, ErrFailed, ErrClosed, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// LimitError is an ErrTooLarge that says which limit of the engine a transaction exceeds. Nothing was written.
type LimitError struct {
	// What is counted, such as "operations of a transaction".
	What           string
	Value, Allowed int
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("store: %s: %d, at most %d", e.What, e.Value, e.Allowed)
}

// Unwrap returns ErrTooLarge.
func (e *LimitError) Unwrap() error { return ErrTooLarge }

// Collection names a set of records: 1 to 32 characters of [a-z0-9_].
type Collection string

// Entry is one entry of a record in an index of its collection. Index is 1 to
// 32 characters of [a-z0-9_]; SortKey is ordered bytewise. A record has at most
// one entry in each index.
type Entry struct {
	Index   string
	SortKey string
}

// Hit is one result of a scan.
type Hit struct {
	SortKey string
	Key     string
}

// Range bounds a scan by sort key. From is inclusive, To exclusive; an empty To means to the end of the index. After,
// when set, resumes after that hit (a cursor) and takes precedence over From. Limit must be 1 to MaxScan. From, To and
// both parts of After must be at most MaxKeyBytes long, else the scan returns ErrTooLarge.
//
// Claim says that the caller is about to claim the hits. An engine with row locks then skips records that another
// transaction has locked, and locks those it returns. An optimistic engine skips records that other transactions of
// this process are claiming and, after conflicts, spreads its answers. Without other claims, and without other
// processes, the order stays exact. Claim is ignored in View.
//
// Repeated marks a polling scan: the caller repeats it to know what comes first. A claiming scan is one
// too. A shared engine may then miss what another process added before the hits or did not claim
// after all: for at most 200 ms or, if that is longer, twenty times as long as its server takes to scan the whole range,
// at most 1.1 s. A scan that returned nothing and is made again half a second later finds all that was there the first time.
//
// With names records that the caller is going to Get whatever the hits are. An engine may read them together with the
// hits, which saves a round trip. It affects only speed: a lone claim on etcd, with its finish, takes 1.4 times as long
// without it.
type Range struct {
	From, To string
	After    *Hit
	Limit    int
	Claim    bool
	Repeated bool
	With     []ID
}

// Tx is a transaction. It is valid only inside the function that it was passed to, and only one goroutine may use it at
// a time.
type Tx interface {
	// Now is the time by which this transaction decides about expiry: the engine's clock where several managers share
	// an engine, else the local wall clock. It is constant during one run of the function.
	Now() time.Time

	// Wall is the time by which this transaction begins what people set for a time of day, such as a job's run_at: the
	// wall clock where Now comes from another one, else Now. It differs from Now by the same amount during one run of the
	// function. It may jump, also backwards, when the clock that it comes from is set. So nothing that must not
	// end early may end by it.
	Wall() time.Time

	// Get returns the record's value as this transaction sees it, including its own writes. The value must not be
	// modified. An absent record is ErrNotFound. A record that the engine cannot read, because it was edited from
	// outside, is an *UnreadableError; the transaction may continue after that.
	Get(c Collection, key string) ([]byte, error)

	// Prefetch has the same effect as a Get of each of the records, and returns the engine's errors. Absent records are not
	// errors. It affects only speed: an engine on a server reads all of them in one round trip. It may also read nothing,
	// and let the first run of the function see the records as this store wrote them last. Such a run counts only if its
	// writes are stored on the condition that the records were so; otherwise the function runs again and sees the records
	// themselves.
	Prefetch(ids []ID) error

	// PrefetchNew is Prefetch for records that are new as a rule: the first run may see those as absent that this store did
	// not write.
	PrefetchNew(ids []ID) error

	// Put inserts or replaces a record together with all of its index entries: entries of the replaced record that are
	// not given again are removed. The engine may read value and entries until the call that runs the function has
	// returned, but not later; they must not be modified before that. A record that the engine cannot read is not
	// replaced: the transaction fails with an *UnreadableError.
	Put(c Collection, key string, value []byte, entries ...Entry) error

	// Delete removes a record and its index entries. Deleting an absent record is not an error. Index entries of a
	// record that the engine cannot read may remain.
	Delete(c Collection, key string) error

	// Scan returns hits of an index of c in the order of (SortKey, Key). Hits may be stale (see the package
	// documentation).
	Scan(c Collection, index string, r Range) ([]Hit, error)

	// Size returns the number of records in a collection, and the bytes of their keys and values, on engines with
	// Capabilities.Sizes; on others errors.ErrUnsupported. In an Update that is exact as of the call of the function:
	// transactions that are not durable yet are included, the function's own writes are not. In a View it counts only what
	// is durable, perhaps at another moment than that of the records.
	Size(c Collection) (records int, bytes int64, err error)

	// Notify wakes the watchers of topic on every manager of this store after the transaction is durable. A failed
	// transaction notifies nobody.
	Notify(topic string)
}

// ID names a record.
type ID struct {
	Collection Collection
	Key        string
}

// Store is an open engine. All methods are safe for concurrent use.
type Store interface {
	// Update runs fn in a read-write transaction (see the package documentation). An error from fn aborts the
	// transaction and is returned unchanged.
	//
	// When ctx ends before the transaction was passed to the medium, nothing is written. When ctx ends while Update
	// waits for durability, Update returns the context's error and the outcome is unknown (see also ErrUnconfirmed). An engine may use the
	// caller's goroutine to write, and then returns only when the write is over. Once Update returns, fn will not run
	// again, and nothing passed to it or returned by it is read any more.
	//
	// fn may run on another goroutine than the caller's, so it must not acquire a lock that a caller holds while it
	// calls the store. A panic of fn still reaches the caller.
	Update(ctx context.Context, fn func(Tx) error) error

	// View runs fn in a read-only transaction: the records it Gets are from one state of the store. As in Update, fn
	// may run more than once.
	View(ctx context.Context, fn func(Tx) error) error

	// Len returns the number of records of a collection that have an entry in index, or of all records when index is
	// empty. Engines with exact sizes (Capabilities.Sizes) count each record that an earlier View has seen. The others may
	// return an estimate that is a few seconds old.
	Len(ctx context.Context, c Collection, index string) (int, error)

	// Watch subscribes to a topic. The channel holds one pending wake-up, and wake-ups that meet a full channel merge
	// into it. Wake-ups may be spurious, and on shared engines a few may be lost, so watchers must also check on a slow
	// timer. The caller must call Stop.
	Watch(topic string) Watcher

	// Capabilities returns what this engine promises; constant while open.
	Capabilities() Capabilities

	// Failed is closed when the engine stopped for good; the process should exit. Err then returns the reason.
	Failed() <-chan struct{}
	Err() error

	// Close waits for running transactions and releases everything.
	Close() error
}

// Watcher is a subscription made by Store.Watch.
type Watcher interface {
	C() <-chan struct{}
	Stop()
}

// Capabilities are facts about an engine that the domain or an operator may need. The domain never branches on Name.
type Capabilities struct {
	// Name of the engine as users select it, for example "wal".
	Name string
	// Durable: acknowledged transactions survive kill -9 and power loss.
	Durable bool
	// Shared: several managers may use the same data at the same time. Where it is false, functions of Update run one after
	// the other, and a scan in one finds what those before it wrote.
	Shared bool
	// Quorum: what is acknowledged is on several machines, and the loss of one does not undo it.
	Quorum bool
	// Sizes: Tx.Size counts. The engine knows the sizes without a look at the records.
	Sizes bool
	// TimePrecision is the granularity of Tx.Now.
	TimePrecision time.Duration
	// Replication returns the state of the standbys of the engine's server; nil for engines that know of none. It does not block.
	Replication func() Replication
	// Behind returns how far Tx.Now is behind this machine's wall clock; negative when it is ahead. It is nil for engines
	// whose Tx.Now is a wall clock. It does not block.
	Behind func() time.Duration
	// Space asks the engine's server how full it is; nil for engines whose server has no limit of its own. It ends soon,
	// also when the server is away.
	Space func(context.Context) Space
	// Scrub removes from the engine's files what they still have, as of its beginning, of values that were replaced or
	// deleted; nil for engines that cannot. write stores any record; Scrub may call it once, so it must not be empty.
	// Callers of the store may have to wait meanwhile.
	Scrub func(ctx context.Context, write func(context.Context) error) error
}

// Space says how full the server of a shared engine is. When nothing answers, all is zero.
type Space struct {
	// Majority: enough members of the server are together to acknowledge a write.
	Majority bool
	// Full: the server takes no more records until an operator makes room. Updates fail with ErrFull.
	Full bool
	// Bytes is the size of the fullest member's file.
	Bytes int64
	// Quota is the size from which the server is Full; 0 if it does not say.
	Quota int64
}

// Replication says which standbys the server of a shared engine has at present.
type Replication struct {
	// Required is how many synchronous standbys must be connected.
	Required int
	// Connected is how many synchronous standbys are connected; -1 if the server does not say.
	Connected int
	// Missing is why calls are refused with ErrUnavailable: fewer are connected than required. Else it is empty.
	Missing string
}
