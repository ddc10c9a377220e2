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
// One lock of the log orders everything: an append is judged, numbered and handed to the
// write-ahead log under it, so the order of entries is the order of records. An append
// goes
//
//	judged ──▶ numbered, id in the window ──▶ record durable ──▶ answered
//	   │                                           │
//	   └─▶ refused                                 └─▶ the log failed: unknown until a restart
//
// An answer that rests on a record which is not durable yet, as a duplicate of it does,
// waits for that record. An append whose caller went away keeps its id: the record is on its
// way. When a write or a sync fails, the log takes no appends any more and answers nothing
// that rests on what was not durable; the next start reads the records and knows.
//
// # Time
//
// The age of an id counts in the log's own time: what has passed while the log was being
// served, by a monotonic clock. After a restart it continues from the last record. So an
// outage, or a clock that jumps, empties no window.
//
// # Bounds
//
// The window forgets by age, and when it holds MaxKeys ids or MaxBytes it forgets the oldest
// one early, counts that and says so, or refuses new ids where the log is configured to.
// Window takes about 60 bytes for each id, see TestWindowOfAMillionIdsStaysSmall.
//
// Package storelogs keeps the entries in a store.
package logs
