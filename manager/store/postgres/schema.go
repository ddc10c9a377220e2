package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

const formatVersion = 1

// migrations[i] takes the schema from version i to i+1. %[1]s is the schema.
var migrations = []string{
	`CREATE TABLE %[1]s.records (
		coll text COLLATE "C" NOT NULL,
		key bytea NOT NULL,
		value bytea NOT NULL,
		entries bytea NOT NULL,
		PRIMARY KEY (coll, key)
	);
	CREATE TABLE %[1]s.entries (
		coll text COLLATE "C" NOT NULL,
		idx text COLLATE "C" NOT NULL,
		sort_key bytea NOT NULL,
		key bytea NOT NULL,
		PRIMARY KEY (coll, idx, sort_key, key)
	);
	ALTER TABLE %[1]s.records SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
	ALTER TABLE %[1]s.entries SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);`,
}

func migrate(ctx context.Context, conn *pgx.Conn, schema string) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, "oncegate schema "+schema); err != nil {
			return err
		}
		q := pgx.Identifier{schema}.Sanitize()
		var have bool
		if err := tx.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, q+".meta").Scan(&have); err != nil {
			return err
		}
		version := 0
		if have {
			if err := tx.QueryRow(ctx, `SELECT version FROM `+q+`.meta`).Scan(&version); err != nil {
				return err
			}
		} else {
			if _, err := tx.Exec(ctx, `CREATE SCHEMA IF NOT EXISTS `+q); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, `CREATE TABLE `+q+`.meta (version integer NOT NULL)`); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, `INSERT INTO `+q+`.meta VALUES (0)`); err != nil {
				return err
			}
		}
		if version > formatVersion {
			return fmt.Errorf("schema %s has format version %d, this version reads up to %d", schema, version, formatVersion)
		}
		for ; version < formatVersion; version++ {
			for _, stmt := range strings.Split(fmt.Sprintf(migrations[version], q), ";") {
				if strings.TrimSpace(stmt) == "" {
					continue
				}
				if _, err := tx.Exec(ctx, stmt); err != nil {
					return err
				}
			}
		}
		_, err := tx.Exec(ctx, `UPDATE `+q+`.meta SET version = $1`, version)
		return err
	})
}

// statements are the engine's SQL with the schema filled in.
type statements struct {
	get, getLocked, lockAbsent, now            string
	insert, update, remove, addEntry, delEntry string
	scan, scanTo, scanAfter, scanAfterTo       string
	claim, claimTo, claimAfter, claimAfterTo   string
	lenAll, lenIndex                           string
}

func newStatements(schema string) statements {
	q := pgx.Identifier{schema}.Sanitize()
	scan := func(cond string, claim bool) string {
		if !claim {
			return `SELECT e.sort_key, e.key FROM ` + q + `.entries e WHERE e.coll = $1 AND e.idx = $2` + cond +
				` ORDER BY e.sort_key, e.key LIMIT $3`
		}
		return `SELECT e.sort_key, e.key, r.value, r.entries FROM ` + q + `.entries e JOIN ` + q + `.records r ON r.coll = e.coll AND r.key = e.key
			WHERE e.coll = $1 AND e.idx = $2` + cond + ` ORDER BY e.sort_key, e.key LIMIT $3 FOR UPDATE OF r SKIP LOCKED`
	}
	const (
		from    = ` AND e.sort_key >= $4`
		fromTo  = from + ` AND e.sort_key < $5`
		after   = ` AND (e.sort_key, e.key) > ($4, $5)`
		afterTo = after + ` AND e.sort_key < $6`
	)
	return statements{
		get:        `SELECT value, entries FROM ` + q + `.records WHERE coll = $1 AND key = $2`,
		getLocked:  `SELECT value, entries FROM ` + q + `.records WHERE coll = $1 AND key = $2 FOR UPDATE`,
		lockAbsent: `SELECT pg_advisory_xact_lock($1)`,
		now:        `SELECT clock_timestamp()`,
		insert:     `INSERT INTO ` + q + `.records (coll, key, value, entries) VALUES ($1, $2, $3, $4)`,
		update:     `UPDATE ` + q + `.records SET value = $3, entries = $4 WHERE coll = $1 AND key = $2`,
		remove:     `DELETE FROM ` + q + `.records WHERE coll = $1 AND key = $2`,
		addEntry:   `INSERT INTO ` + q + `.entries (coll, idx, sort_key, key) VALUES ($1, $2, $3, $4)`,
		delEntry:   `DELETE FROM ` + q + `.entries WHERE coll = $1 AND idx = $2 AND sort_key = $3 AND key = $4`,
		scan:       scan(from, false), scanTo: scan(fromTo, false), scanAfter: scan(after, false), scanAfterTo: scan(afterTo, false),
		claim: scan(from, true), claimTo: scan(fromTo, true), claimAfter: scan(after, true), claimAfterTo: scan(afterTo, true),
		lenAll:   `SELECT count(*) FROM ` + q + `.records WHERE coll = $1`,
		lenIndex: `SELECT count(*) FROM ` + q + `.entries WHERE coll = $1 AND idx = $2`,
	}
}
