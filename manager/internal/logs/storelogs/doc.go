// Package storelogs keeps logs in collections of a store, so that every engine of package store keeps logs: Postgres,
// SQLite, Redis and memory. Several managers may share the store, and append to one log at the same time.
//
// # Collections
//
//	log_heads    a log's settings and numbers, by name
//	log_entries  entries that were appended together, by the number of the last one
//	log_ids      an id of the window, by its hash
//	log_windows  the ids of entries that were appended together, in the order in which they expire
//	log_clients  a client of a log with structured ids
//	log_writers  a writer and its epoch
//	log_graves   a deleted log that still has records
//	log_meta     the number of logs, and the clock
//
// All keys but names begin with 8 bytes that are unique to a log. So a log that is deleted and made again shares
// nothing with the one before.
//
// # Appending
//
// Calls that wait together go into one transaction. It reads the head and the ids that the calls name, judges them as
// package logs does, and writes entries, ids and head. A transaction that appends rewrites the head, and fails when
// another manager did so meanwhile. So transactions on a log have an order, numbers have no gaps, and a reader that sees
// an entry sees all before it.
//
// A commit whose outcome is unknown needs nothing else: it and the next append cannot both succeed, since both rest on
// the same head. If it did succeed, the next append finds the ids. Only ByID could answer too early that an id is
// unknown. So it rewrites the head first, which makes a commit that is still under way fail.
//
// # Time
//
// The logs share one clock, which runs while a manager serves and there are logs. Each manager counts with a monotonic
// clock, takes a greater value that it finds in the store, and writes its value there each second. Managers thus
// differ by some seconds, and a window lasts so much longer where managers share the store (margin).
//
// # Bounds
//
// One transaction deletes at most maxForget ids, or maxDelete records of entries. Ids that are too old, entries that
// retention gives up and the records of deleted logs are deleted in the background. The append deletes ids beyond max_keys.
package storelogs
