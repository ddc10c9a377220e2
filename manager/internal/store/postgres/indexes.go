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
	// As indexID.
	`CREATE FUNCTION %[1]s.index_id(coll text, idx text) RETURNS integer IMMUTABLE LANGUAGE sql AS $$
		SELECT ('x' || encode(substr(sha256(convert_to(coll || '.' || idx, 'UTF8')), 1, 4), 'hex'))::bit(32)::integer
	$$`,
}

// moveEntries takes over the index entries of the first release. Its managers wait meanwhile.
var moveEntries = []string{
	`LOCK TABLE %[1]s.entries IN ACCESS EXCLUSIVE MODE`,
	`INSERT INTO %[1]s.indexes SELECT %[1]s.index_id(coll, idx), coll, idx FROM (SELECT DISTINCT coll, idx FROM %[1]s.entries) AS used`,
	`INSERT INTO %[1]s.index_entries SELECT i.index_id, e.sort_key, e.key FROM %[1]s.indexes i JOIN %[1]s.entries e USING (coll, idx)`,
	`DROP TABLE %[1]s.entries`,
}

// forEarlier is what managers of the first release use, which share the schema while managers are upgraded one after the
// other, or when an operator goes back: a view in place of their table entries, and their function apply.
//
// Each index is a part of the view of its own, with an order: then a scan of one index with a limit reads no others, and
// no more than the limit. Statements of the first release name the index in parameters.
//
// Only its owner may replace a view, and a manager's role may have no more than rights on the tables. So add_index acts for
// the owner.
var forEarlier = []string{
	`CREATE FUNCTION %[1]s.add_index(new_coll text, new_idx text) RETURNS void LANGUAGE plpgsql
		SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
	BEGIN
		IF EXISTS (SELECT FROM %[1]s.indexes WHERE coll = new_coll AND idx = new_idx) THEN RETURN; END IF;
		PERFORM pg_advisory_xact_lock(hashtextextended('oncegate indexes %[1]s', 0));
		INSERT INTO %[1]s.indexes VALUES (%[1]s.index_id(new_coll, new_idx), new_coll, new_idx) ON CONFLICT (coll, idx) DO NOTHING;
		PERFORM %[1]s.show_entries();
	END
	$$`,
	`CREATE FUNCTION %[1]s.show_entries() RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		EXECUTE 'CREATE OR REPLACE VIEW %[1]s.entries AS ' || coalesce(
			(SELECT string_agg(format('(SELECT %%L::text COLLATE "C" AS coll, %%L::text COLLATE "C" AS idx, sort_key, key '
				|| 'FROM %[1]s.index_entries WHERE index_id = %%s ORDER BY sort_key, key)', coll, idx, index_id), ' UNION ALL ') FROM %[1]s.indexes),
			'SELECT NULL::text COLLATE "C" AS coll, NULL::text COLLATE "C" AS idx, sort_key, key FROM %[1]s.index_entries WHERE false');
	END
	$$`,
	`SELECT %[1]s.show_entries()`,
	`CREATE OR REPLACE FUNCTION %[1]s.apply(
		lock_number bigint[], lock_own boolean[],
		rec_what "char"[], rec_coll text[], rec_key bytea[], rec_version xid[], rec_value bytea[], rec_entries bytea[],
		ent_what "char"[], ent_coll text[], ent_key bytea[], ent_old_idx text[], ent_old_sort bytea[], ent_new_idx text[], ent_new_sort bytea[]
	) RETURNS void LANGUAGE plpgsql AS $$
	DECLARE
		old_index integer[];
		new_index integer[];
	BEGIN
		PERFORM %[1]s.add_index(w.coll, w.idx)
			FROM (SELECT DISTINCT e.coll, e.idx FROM unnest(ent_what, ent_coll, ent_new_idx) AS e (what, coll, idx) WHERE e.what <> 'd') AS w;
		SELECT coalesce(array_agg(%[1]s.index_id(w.coll, w.old_idx) ORDER BY w.n), '{}'), coalesce(array_agg(%[1]s.index_id(w.coll, w.new_idx) ORDER BY w.n), '{}')
			INTO old_index, new_index
			FROM unnest(ent_coll, ent_old_idx, ent_new_idx) WITH ORDINALITY AS w (coll, old_idx, new_idx, n);
		PERFORM %[1]s.apply2(lock_number, lock_own, rec_what, rec_coll, rec_key, rec_version, rec_value, rec_entries,
			ent_what, ent_key, old_index, ent_old_sort, new_index, ent_new_sort);
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

// connected notes the server of a new connection.
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

// added notes what a commit added to a server's table.
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
