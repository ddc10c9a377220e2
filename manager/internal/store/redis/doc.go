// Package redis is the store engine on a Redis server that several managers
// may share.
//
// # Layout
//
// All keys start with "{namespace}:", so they hash to one slot. A record is a string ({ns}:r:<collection>:<key>) with
// its index entries and its value. An index is a sorted set ({ns}:x:<collection>:<index>). Its members all have score 0
// and encode (sort key, record key) so that their byte order is the order of the pairs. Record counts are in a hash
// ({ns}:n).
//
// # Transactions
//
// Every Get watches its record: WATCH, GET and TIME share one round trip, for any number of prefetched records. Writes
// are buffered and sent as one MULTI/EXEC. If a watched record changed meanwhile, EXEC does nothing and the function
// runs again. Records that are written without having been read are loaded together just before EXEC, because their old
// index entries have to be removed. Ranges cannot be watched, so scans are hints.
//
// Two measures keep competing claimers apart. A process remembers which hits its running transactions are claiming, and
// leaves them out of other claiming scans. After a conflict with another process a claiming scan starts at a random
// place of a window that grows with the conflicts.
//
// # Durability
//
// The server's settings decide what acknowledged transactions survive: with appendonly yes and appendfsync always, kill
// -9 and power loss; with appendfsync everysec, up to a second of acknowledged transactions may be lost with the
// machine; without the append-only file, everything since the last snapshot. Open reads the settings and reports them
// in Capabilities. Asynchronous replicas may lack acknowledged transactions when they are promoted.
//
// A server that evicts keys would forget reservations that are still held. So a connection is used only if the server's
// maxmemory-policy is noeviction, also after a failover. If the policy changes while the store is open, calls fail with
// ErrUnavailable until it is changed back; Options.CheckInterval bounds how soon that is noticed. A server that does
// not show its settings is trusted.
package redis
