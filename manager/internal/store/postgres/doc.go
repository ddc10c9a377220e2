// Package postgres is the store engine on a PostgreSQL database that several
// managers may share.
//
// # Layout
//
// One schema (Options.Schema) with three tables: records (collection, key,
// value and the record's index entries), entries (one row per index entry,
// whose primary key is the order scans need) and meta (the format version); and
// the function apply, which commits. Open creates and migrates them under an
// advisory lock, so that several managers may start at once.
//
// # Transactions
//
// An Update reads first and writes last, and between the two it holds nothing on
// the server, not even a transaction: each Get is one statement that brings the
// record, the server's time and the version of the row (xmin, the transaction
// that wrote it). A Put of a record that was not looked at takes it for absent.
// The commit is one call of apply, which in one round trip
//
//  1. takes an advisory lock for each record that is absent, on a number made
//     of its name: alone for those it inserts, shared for those whose absence it
//     relies on;
//  2. locks the rows that were read or are written;
//  3. refuses unless every record is as it was read: the row with its version,
//     or no row;
//  4. writes records and index entries.
//
// All locks come before the first look, and are held until the end, so
// transactions are serializable with respect to the records they Get. When apply
// refuses, the function runs again; what made a function return an error is
// checked as well, if it read more than one record. After three such runs the
// function's Gets lock (the row, or the name of an absent record), so that it
// meets no more changes: a busy record makes transactions wait in line, not try
// forever. A deadlock, or a lock wait of more than five seconds, makes the
// function run again, too. The server looks for deadlocks after 50 ms if the
// user may set deadlock_timeout (GRANT SET ON PARAMETER), else after its default
// of a second.
//
// A claiming scan opens a transaction and is FOR UPDATE SKIP LOCKED; it brings
// the records with it. View runs at REPEATABLE READ, READ ONLY.
//
// Notifications are sent after the commit, on their own; see notifier.
//
// # Durability
//
// The engine sets synchronous_commit to on for its sessions, so that what it
// acknowledges survives kill -9 and power loss as long as the server runs with
// fsync on and its disk keeps its word. A standby that is not synchronous may
// lack acknowledged transactions when it is promoted.
//
// # Why so
//
// Why not SERIALIZABLE? Its predicate locks cover pages of indexes, and a queue
// works at the ends of a few: transactions that have nothing to do with each
// other would fail each other all the time.
//
// Why not lock at each Get? That is a round trip with locks held for every
// record, a written row for every look, and a second round trip where there is
// no row to lock.
package postgres
