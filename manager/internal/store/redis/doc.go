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
// position in a window that grows with the conflicts.
//
// # Durability
//
// The server's settings decide what acknowledged transactions survive: with appendonly yes and appendfsync always, kill
// -9 and power loss; with appendfsync everysec, up to a second of acknowledged transactions may be lost with the
// machine; without the append-only file, everything since the last snapshot. Open reads the settings and reports them
// in Capabilities.
//
// Replication is asynchronous, so a replica may lack acknowledged transactions when Sentinel or a person promotes it:
// TestFailoverLosesWhatTheReplicaLacks. If the server's min-replicas-to-write is N, above 0, the engine waits for N
// replicas: after each EXEC with WAITAOF, for their disks, on servers that have it (Redis 7.2, Valkey), else with WAIT,
// for their memory. A call that read and did not write first writes a key and waits for that, together with the calls
// that come meanwhile. A wait that ends without N replicas is store.ErrUnavailable after two seconds. A failover still loses
// what only replicas other than the promoted one had.
//
// What replicas confirm counts only for the server that executed the call. So a call asks for the role and the
// replication id of the server before its first read, and compares them with those after the wait: a server that becomes
// the primary gives itself a new id. If they differ, the call fails with store.ErrUnavailable. No connection is used that
// leads to a replica.
//
// A server that evicts keys would forget reservations that are still held. So a connection is used only if the server's
// maxmemory-policy is noeviction, also after a failover. If the policy changes while the store is open, calls fail with
// ErrUnavailable until it is changed back; Options.CheckInterval bounds how soon that is noticed. A server that does
// not show its settings is trusted.
package redis
