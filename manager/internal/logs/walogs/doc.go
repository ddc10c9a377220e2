// Package walogs keeps logs in write-ahead logs of package wal, one in a directory of its own
// for each. An entry's payload is written once, in the segment in which its append became
// durable, and read from there.
//
// # Records
//
// A record begins with a byte for its kind:
//
//	g  the log's settings, in JSON; the first record is one
//	e  entries that were appended together, see logs.AppendEntries
//	x  the same, sealed by package crypt for the log's name
//	w  a writer's new epoch; 0: the writer was removed
//	t  the log time, when there is nothing else to write
//
// # Snapshots
//
// A snapshot holds logs.State as of a record, and where in the log every 64 KiB or so begins
// (points). Records and state change under one lock, so everything up to that record is in
// the snapshot and nothing after it. It keeps the segments that retention has not given up.
// One is taken each minute when there are new records, or after many. Recovery reads the newest snapshot, and then the records after it. A record that cannot
// be read, or that does not follow the one before, makes the log refuse its calls until another start. Its name
// stays taken: a new log of that name would not know the ids.
//
// # Bounds
//
// Each log takes two segments of disk at least, and two goroutines. Options.MaxLogs bounds
// how many there are.
package walogs
