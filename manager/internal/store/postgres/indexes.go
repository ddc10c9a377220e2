package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"sync"

	"github.com/jackc/pgx/v5"
)

// indexTables makes the index entries. Each index has a number, because the server compares a number and a sort key far
// faster than two names and a sort key.
var indexTables = []string{
	`CREATE TABLE %[1]s.index_entries (
		index_id integer NOT NULL,
		sort_key bytea NOT NULL,
		key bytea NOT NULL,
		PRIMARY KEY (index_id, sort_key, key)
	)`,
	`ALTER TABLE %[1]s.index_entries SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0)`,
	`CREATE TABLE %[1]s.indexes (
		index_id integer PRIMARY KEY,
		coll text COLLATE "C" NOT NULL,
		idx text COLLATE "C" NOT NULL,
		UNIQUE (coll, idx)
	)`,
	// Several commits may be the first to use an index. The lock lets one of them insert it; without it the others would
	// violate the primary key. Another name with the same number does, and is refused.
	`CREATE FUNCTION %[1]s.add_index(new_id integer, new_coll text, new_idx text) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		IF EXISTS (SELECT FROM %[1]s.indexes WHERE coll = new_coll AND idx = new_idx) THEN RETURN; END IF;
		PERFORM pg_advisory_xact_lock(hashtextextended('oncegate indexes %[1]s', 0));
		INSERT INTO %[1]s.indexes VALUES (new_id, new_coll, new_idx) ON CONFLICT (coll, idx) DO NOTHING;
	END
	$$`,
}

// indexID is the number of an index. It depends on nothing but the names, so that all servers and managers agree on it,
// whatever a failover lost. Two indexes with one number are refused (add_index).
func indexID(n indexName) int32 {
	sum := sha256.Sum256([]byte(n.String()))
	return int32(binary.BigEndian.Uint32(sum[:]))
}

type indexName struct{ collection, index string }

func (n indexName) String() string { return n.collection + "." + n.index }

// indexes knows the numbers of indexes, and which of them the server's table has. A commit adds to the table what it is
// the first to use. A server that takes over may lack what the last one had.
type indexes struct {
	mu     sync.RWMutex
	server server
	known  map[indexName]int32
}

// id returns the number of an index, and whether the server's table has it.
func (x *indexes) id(n indexName) (id int32, known bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if id, known = x.known[n]; known {
		return id, true
	}
	return indexID(n), false
}

// connected records the server of a new connection.
func (x *indexes) connected(on server) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.server != on {
		x.server, x.known = on, make(map[indexName]int32)
	}
}

// load reads the server's table.
func (x *indexes) load(ctx context.Context, conn *pgx.Conn, q *statements) error {
	rows, err := conn.Query(ctx, q.indexes)
	if err != nil {
		return err
	}
	var n indexName
	_, err = pgx.ForEachRow(rows, []any{&n.collection, &n.index}, func() error {
		x.added([]indexName{n}, serverOf(conn))
		return nil
	})
	return err
}

// added records what a commit added to a server's table.
func (x *indexes) added(names []indexName, on server) {
	if len(names) == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.server != on {
		return
	}
	for _, n := range names {
		x.known[n] = indexID(n)
	}
}
