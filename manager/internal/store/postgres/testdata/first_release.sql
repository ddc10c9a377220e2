-- The schema as the first release made it.
CREATE SCHEMA oncegate;
CREATE TABLE oncegate.meta (version integer NOT NULL);
INSERT INTO oncegate.meta VALUES (1);
CREATE TABLE oncegate.records (
		coll text COLLATE "C" NOT NULL,
		key bytea NOT NULL,
		value bytea NOT NULL,
		entries bytea NOT NULL,
		PRIMARY KEY (coll, key)
	);
CREATE TABLE oncegate.entries (
		coll text COLLATE "C" NOT NULL,
		idx text COLLATE "C" NOT NULL,
		sort_key bytea NOT NULL,
		key bytea NOT NULL,
		PRIMARY KEY (coll, idx, sort_key, key)
	);
ALTER TABLE oncegate.records SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE oncegate.entries SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE FUNCTION oncegate.apply(
	lock_number bigint[], lock_own boolean[],
	rec_what "char"[], rec_coll text[], rec_key bytea[], rec_version xid[], rec_value bytea[], rec_entries bytea[],
	ent_what "char"[], ent_coll text[], ent_key bytea[], ent_old_idx text[], ent_old_sort bytea[], ent_new_idx text[], ent_new_sort bytea[]
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
				PERFORM FROM oncegate.records t WHERE t.coll = rec_coll[i] AND t.key = rec_key[i] FOR SHARE;
			ELSIF rec_what[i] IN ('u', 'd') THEN
				PERFORM FROM oncegate.records t WHERE t.coll = rec_coll[i] AND t.key = rec_key[i] FOR UPDATE;
			END IF;
		END LOOP;
	END IF;

	wanted := cardinality(array_positions(rec_what, 'u'));
	IF wanted > 0 THEN
		UPDATE oncegate.records t SET value = w.value, entries = w.entries
			FROM unnest(rec_what, rec_coll, rec_key, rec_version, rec_value, rec_entries) AS w (what, coll, key, version, value, entries)
			WHERE w.what = 'u' AND t.coll = w.coll AND t.key = w.key AND t.xmin = w.version;
		GET DIAGNOSTICS matched = ROW_COUNT;
		IF matched <> wanted THEN RAISE serialization_failure; END IF;
	END IF;

	wanted := cardinality(array_positions(rec_what, 'd'));
	IF wanted > 0 THEN
		DELETE FROM oncegate.records t
			USING unnest(rec_what, rec_coll, rec_key, rec_version) AS w (what, coll, key, version)
			WHERE w.what = 'd' AND t.coll = w.coll AND t.key = w.key AND t.xmin = w.version;
		GET DIAGNOSTICS matched = ROW_COUNT;
		IF matched <> wanted THEN RAISE serialization_failure; END IF;
	END IF;

	wanted := cardinality(array_positions(rec_what, 'r'));
	IF wanted > 0 THEN
		SELECT count(*) INTO matched
			FROM unnest(rec_what, rec_coll, rec_key, rec_version) AS w (what, coll, key, version)
			CROSS JOIN LATERAL (SELECT xmin FROM oncegate.records WHERE coll = w.coll AND key = w.key OFFSET 0) t
			WHERE w.what = 'r' AND t.xmin = w.version;
		IF matched <> wanted THEN RAISE serialization_failure; END IF;
	END IF;

	IF 'n' = ANY(rec_what) THEN
		PERFORM FROM unnest(rec_what, rec_coll, rec_key) AS w (what, coll, key)
			CROSS JOIN LATERAL (SELECT FROM oncegate.records WHERE coll = w.coll AND key = w.key OFFSET 0) t
			WHERE w.what = 'n';
		IF FOUND THEN RAISE serialization_failure; END IF;
	END IF;

	IF 'i' = ANY(rec_what) THEN
		INSERT INTO oncegate.records (coll, key, value, entries)
			SELECT w.coll, w.key, w.value, w.entries
			FROM unnest(rec_what, rec_coll, rec_key, rec_value, rec_entries) AS w (what, coll, key, value, entries)
			WHERE w.what = 'i';
	END IF;

	IF 'd' = ANY(ent_what) THEN
		DELETE FROM oncegate.entries t
			USING unnest(ent_what, ent_coll, ent_key, ent_old_idx, ent_old_sort) AS w (what, coll, key, idx, sort_key)
			WHERE w.what = 'd' AND t.coll = w.coll AND t.idx = w.idx AND t.sort_key = w.sort_key AND t.key = w.key;
	END IF;
	IF 'u' = ANY(ent_what) THEN
		UPDATE oncegate.entries t SET idx = w.new_idx, sort_key = w.new_sort
			FROM unnest(ent_what, ent_coll, ent_key, ent_old_idx, ent_old_sort, ent_new_idx, ent_new_sort)
				AS w (what, coll, key, idx, sort_key, new_idx, new_sort)
			WHERE w.what = 'u' AND t.coll = w.coll AND t.idx = w.idx AND t.sort_key = w.sort_key AND t.key = w.key;
	END IF;
	IF 'i' = ANY(ent_what) THEN
		INSERT INTO oncegate.entries (coll, idx, sort_key, key)
			SELECT w.coll, w.idx, w.sort_key, w.key
			FROM unnest(ent_what, ent_coll, ent_key, ent_new_idx, ent_new_sort) AS w (what, coll, key, idx, sort_key)
			WHERE w.what = 'i';
	END IF;
END
$$;
