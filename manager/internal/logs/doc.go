// Package logs is the domain of idempotent log writes: named logs to which an entry is
// appended at most once, however often its writer asks.
//
// # Identity
//
// A writer gives an entry an id, or has one derived from the payload. The log remembers
// the ids of its window. The same id again is a duplicate and gets the entry that the
// first one got; with another payload it is refused. In a log with structured ids,
// {client}:{sequence}:{nonce}, the log remembers one number for each client and nonce, and
// a sequence that skips one is refused as a gap. An entry without an id is appended each
// time.
//
// A writer may also open an epoch. Its entries carry the epoch, and once a newer epoch of
// the same writer is open, entries with an older one are refused as fenced.
//
// # Judging
//
// A State judges the entries of a batch with what an engine loaded: the ids, clients and writers that the batch names. The
// engine makes a State in each transaction, and writes entries and ids together. So the order of transactions is the order
// of entries, and an answer rests only on what is durable.
//
// # Time
//
// The age of an id counts in the log's own time: what has passed while the log was being
// served, by a monotonic clock. After a restart it continues from the last record. So an
// outage, or a clock that jumps, empties no window.
//
// # Bounds
//
// The window forgets by age, and when it holds MaxKeys ids or MaxBytes the engine forgets the oldest
// one early, counts that and logs it, or refuses new ids where the log is configured to.
//
// Package storelogs keeps the entries in a store.
package logs
