// Package redis is the store engine on a Redis server that several managers
// may share.
//
// # Layout
//
// All keys start with "{namespace}:" so that they hash to one slot. A record is
// a string ({ns}:r:<collection>:<key>) holding its index entries and its value;
// an index is a sorted set ({ns}:x:<collection>:<index>) whose members all have
// score 0 and encode (sort key, record key) so that their byte order is the
// order of the pairs; record counts are in a hash ({ns}:n).
//
// # Transactions
//
// Every Get watches its record (WATCH, GET and TIME travel in one round trip, for
// any number of records that are prefetched), writes are kept back and sent as
// one MULTI/EXEC. EXEC does nothing when a watched record changed meanwhile; then
// the function runs again. Records that are written without having been read
// are looked at together just before, because their old index entries have to
// go. Ranges cannot be watched, which is why scans are hints.
//
// Competing claimers are kept apart in two ways: a process remembers which hits
// its running transactions are claiming and leaves them out of other claiming
// scans, and after a conflict with another process a claiming scan starts at a
// random place of a window that grows with the conflicts.
//
// # Durability
//
// What Redis acknowledges survives what the server's own settings make it
// survive: with appendonly yes and appendfsync always, kill -9 and power loss;
// with appendfsync everysec, up to a second of acknowledged transactions may be
// lost with the machine; without the append-only file, everything since the
// last snapshot. Open reads the settings and reports them in Capabilities. A
// server that evicts keys would forget reservations while they hold, so no
// connection to one is used whose maxmemory-policy is anything but noeviction,
// also after a failover; and when it is changed while the store is open, calls fail with
// ErrUnavailable, beginning at most Options.CheckInterval later, until it is changed
// back. A server that does not show its settings is trusted. Asynchronous replicas may lack
// acknowledged transactions when they are promoted.
package redis
