package postgres

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncegate/oncegate/manager/internal/store"
)

const formatVersion = 1

// tables makes the records and the table of the format version. %[1]s is the schema.
var tables = []string{
	`CREATE SCHEMA IF NOT EXISTS %[1]s`,
	`CREATE TABLE %[1]s.meta (version integer NOT NULL)`,
	`CREATE TABLE %[1]s.records (
		coll text COLLATE "C" NOT NULL,
		key bytea NOT NULL,
		value bytea NOT NULL,
		entries bytea NOT NULL,
		PRIMARY KEY (coll, key)
	)`,
	`ALTER TABLE %[1]s.records SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0)`,
}

// applyFunction is the second half of a transaction (see the package documentation). Its arguments are
//
//   - the advisory locks to take, and which of them are exclusive;
//   - the records, in order: what to do (r: check that it is as it was read,
//     n: check that it is still absent, u: update, d: delete, i: insert), and
//     the version that was read;
//   - the index entries, in order: what to do (u: change the old one to the new
//     one, d: delete the old one, i: insert the new one).
//
// It raises serialization_failure when a record is not as it was read. All locks are taken before the first check, so
// each statement sees everything that was committed before the last lock was granted.
const applyFunction = `CREATE FUNCTION %[1]s.apply(
	lock_number bigint[], lock_own boolean[],
	rec_what "char"[], rec_coll text[], rec_key bytea[], rec_version xid[], rec_value bytea[], rec_entries bytea[],
	ent_what "char"[], ent_key bytea[], ent_old_index integer[], ent_old_sort bytea[], ent_new_index integer[], ent_new_sort bytea[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	matched bigint;
	wanted bigint;
BEGIN
	FOR i IN 1 .. cardinality(lock_number) LOOP
		IF lock_own[i] THEN
			PERFORM pg_advisory_xact_lock(lock_number[i]);
		ELSE
			PERFORM pg_advisory_xact_lock_shared(lock_number[i]);
		END IF;
	END LOOP;

	-- Without records that are only read, the writes below lock in order.
	IF 'r' = ANY(rec_what) THEN
		FOR i IN 1 .. cardinality(rec_what) LOOP
			IF rec_what[i] = 'r' THEN
				PERFORM FROM %[1]s.records t WHERE t.coll = rec_coll[i] AND t.key = rec_key[i] FOR SHARE;
			ELSIF rec_what[i] IN ('u', 'd') THEN
				PERFORM FROM %[1]s.records t WHERE t.coll = rec_coll[i] AND t.key = rec_key[i] FOR UPDATE;
			END IF;
		END LOOP;
	END IF;

	wanted := cardinality(array_positions(rec_what, 'u'));
	IF wanted > 0 THEN
		UPDATE %[1]s.records t SET value = w.value, entries = w.entries
			FROM unnest(rec_what, rec_coll, rec_key, rec_version, rec_value, rec_entries) AS w (what, coll, key, version, value, entries)
			WHERE w.what = 'u' AND t.coll = w.coll AND t.key = w.key AND t.xmin = w.version;
		GET DIAGNOSTICS matched = ROW_COUNT;
		IF matched <> wanted THEN RAISE serialization_failure; END IF;
	END IF;

	wanted := cardinality(array_positions(rec_what, 'd'));
	IF wanted > 0 THEN
		DELETE FROM %[1]s.records t
			USING unnest(rec_what, rec_coll, rec_key, rec_version) AS w (what, coll, key, version)
			WHERE w.what = 'd' AND t.coll = w.coll AND t.key = w.key AND t.xmin = w.version;
		GET DIAGNOSTICS matched = ROW_COUNT;
		IF matched <> wanted THEN RAISE serialization_failure; END IF;
	END IF;

	wanted := cardinality(array_positions(rec_what, 'r'));
	IF wanted > 0 THEN
		SELECT count(*) INTO matched
			FROM unnest(rec_what, rec_coll, rec_key, rec_version) AS w (what, coll, key, version)
			CROSS JOIN LATERAL (SELECT xmin FROM %[1]s.records WHERE coll = w.coll AND key = w.key OFFSET 0) t
			WHERE w.what = 'r' AND t.xmin = w.version;
		IF matched <> wanted THEN RAISE serialization_failure; END IF;
	END IF;

	IF 'n' = ANY(rec_what) THEN
		PERFORM FROM unnest(rec_what, rec_coll, rec_key) AS w (what, coll, key)
			CROSS JOIN LATERAL (SELECT FROM %[1]s.records WHERE coll = w.coll AND key = w.key OFFSET 0) t
			WHERE w.what = 'n';
		IF FOUND THEN RAISE serialization_failure; END IF;
	END IF;

	IF 'i' = ANY(rec_what) THEN
		INSERT INTO %[1]s.records (coll, key, value, entries)
			SELECT w.coll, w.key, w.value, w.entries
			FROM unnest(rec_what, rec_coll, rec_key, rec_value, rec_entries) AS w (what, coll, key, value, entries)
			WHERE w.what = 'i';
	END IF;

	IF 'd' = ANY(ent_what) THEN
		DELETE FROM %[1]s.index_entries t
			USING unnest(ent_what, ent_key, ent_old_index, ent_old_sort) AS w (what, key, index_id, sort_key)
			WHERE w.what = 'd' AND t.index_id = w.index_id AND t.sort_key = w.sort_key AND t.key = w.key;
	END IF;
	IF 'u' = ANY(ent_what) THEN
		UPDATE %[1]s.index_entries t SET index_id = w.new_index, sort_key = w.new_sort
			FROM unnest(ent_what, ent_key, ent_old_index, ent_old_sort, ent_new_index, ent_new_sort)
				AS w (what, key, index_id, sort_key, new_index, new_sort)
			WHERE w.what = 'u' AND t.index_id = w.index_id AND t.sort_key = w.sort_key AND t.key = w.key;
	END IF;
	IF 'i' = ANY(ent_what) THEN
		INSERT INTO %[1]s.index_entries (index_id, sort_key, key)
			SELECT w.index_id, w.sort_key, w.key
			FROM unnest(ent_what, ent_key, ent_new_index, ent_new_sort) AS w (what, key, index_id, sort_key)
			WHERE w.what = 'i';
	END IF;
END
$$`

// createTimeout bounds the creation of the schema: its commit waits for a standby where the server requires one.
const createTimeout = time.Minute

// createSchema creates the schema unless it is there. With used it returns store.ErrUnused instead of creating it. A
// schema of another format is an error.
func createSchema(ctx context.Context, conn *pgx.Conn, schema string, used bool) error {
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		// Another manager may be creating it, and wait for a standby.
		if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = 0`); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, "oncegate schema "+schema); err != nil {
			return err
		}
		q := pgx.Identifier{schema}.Sanitize()
		var have bool
		if err := tx.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, q+".meta").Scan(&have); err != nil {
			return err
		}
		if have {
			version := 0
			if err := tx.QueryRow(ctx, `SELECT version FROM `+q+`.meta`).Scan(&version); err != nil {
				return err
			}
			if version != formatVersion {
				return fmt.Errorf("schema %s has format version %d, this program reads %d", schema, version, formatVersion)
			}
			return nil // a write would wait for a standby
		}
		if used {
			return store.ErrUnused
		}
		for _, stmt := range slices.Concat(tables, indexTables, []string{applyFunction}) {
			if _, err := tx.Exec(ctx, fmt.Sprintf(stmt, q)); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, `INSERT INTO `+q+`.meta VALUES ($1)`, formatVersion)
		return err
	})
}

// statements holds the engine's SQL for one schema.
//
// The look-ups of several records are LATERAL subqueries, and OFFSET 0 keeps them so: the planner then has to look up
// one record after the other in the primary key. Without it, the planner reads all of a table that it believes to be
// empty, and keeps that plan while the table grows.
type statements struct {
	get, getMany, getLocked, lockAbsent, now, entries string
	indexes, addIndex                                 string
	apply, same                                       string
	scan, scanTo, scanAfter, scanAfterTo              string
	claim, claimTo, claimAfter, claimAfterTo          string
	lenAll, lenIndex                                  string
}

func newStatements(schema string) statements {
	q := pgx.Identifier{schema}.Sanitize()
	// next is the number of the parameter after those of the condition.
	scan := func(cond string, next int, claim bool) string {
		if !claim {
			return `SELECT e.sort_key, e.key FROM ` + q + `.index_entries e WHERE e.index_id = $1` + cond +
				` ORDER BY e.sort_key, e.key LIMIT $2`
		}
		return `SELECT e.sort_key, e.key, r.value, r.entries, r.xmin FROM ` + q + `.index_entries e CROSS JOIN LATERAL
			(SELECT value, entries, xmin FROM ` + q + `.records WHERE coll = $` + strconv.Itoa(next) + ` AND key = e.key FOR UPDATE SKIP LOCKED) r
			WHERE e.index_id = $1` + cond + ` ORDER BY e.sort_key, e.key LIMIT $2`
	}
	const (
		from    = ` AND e.sort_key >= $3`
		fromTo  = from + ` AND e.sort_key < $4`
		after   = ` AND (e.sort_key, e.key) > ($3, $4)`
		afterTo = after + ` AND e.sort_key < $5`
	)
	return statements{
		// Always one row, so the time is returned even without a record.
		get: `SELECT clock_timestamp(), r.value, r.entries, r.xmin FROM (VALUES (1)) one LEFT JOIN LATERAL
			(SELECT value, entries, xmin FROM ` + q + `.records WHERE coll = $1 AND key = $2 OFFSET 0) r ON true`,
		getMany: `SELECT clock_timestamp(), r.value, r.entries, r.xmin
			FROM unnest($1::text[], $2::bytea[]) WITH ORDINALITY AS w (coll, key, n) LEFT JOIN LATERAL
			(SELECT value, entries, xmin FROM ` + q + `.records WHERE coll = w.coll AND key = w.key OFFSET 0) r ON true ORDER BY w.n`,
		getLocked:  `SELECT clock_timestamp(), value, entries, xmin FROM ` + q + `.records WHERE coll = $1 AND key = $2 FOR UPDATE`,
		lockAbsent: `SELECT pg_advisory_xact_lock($1)`,
		now:        `SELECT clock_timestamp()`,
		entries:    `SELECT i.idx, e.sort_key FROM ` + q + `.indexes i JOIN ` + q + `.index_entries e USING (index_id) WHERE i.coll = $1 AND e.key = $2`,
		indexes:    `SELECT coll, idx FROM ` + q + `.indexes`,
		addIndex:   `SELECT ` + q + `.add_index($1, $2, $3)`,
		apply:      `SELECT ` + q + `.apply($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)`,
		// One statement sees one state.
		same: `SELECT count(*) FILTER (WHERE w.what = 'r' AND r.xmin IS DISTINCT FROM w.version OR w.what = 'n' AND r.xmin IS NOT NULL) = 0
			FROM unnest($1::"char"[], $2::text[], $3::bytea[], $4::xid[]) AS w (what, coll, key, version) LEFT JOIN LATERAL
			(SELECT xmin FROM ` + q + `.records WHERE coll = w.coll AND key = w.key OFFSET 0) r ON true`,
		scan: scan(from, 4, false), scanTo: scan(fromTo, 5, false), scanAfter: scan(after, 5, false), scanAfterTo: scan(afterTo, 6, false),
		claim: scan(from, 4, true), claimTo: scan(fromTo, 5, true), claimAfter: scan(after, 5, true), claimAfterTo: scan(afterTo, 6, true),
		lenAll:   `SELECT count(*) FROM ` + q + `.records WHERE coll = $1`,
		lenIndex: `SELECT count(*) FROM ` + q + `.index_entries WHERE index_id = $1`,
	}
}
