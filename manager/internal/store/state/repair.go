package state

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/member"
)

// ErrBeyondRepair is returned by Repair for a state that only a copy can replace.
var ErrBeyondRepair = errors.New("the damage cannot be repaired; restore the state from a copy")

const (
	// maxRescued bounds the records in damaged parts that a repair looks for.
	maxRescued = 1 << 20
	// maxLost bounds the records that a repair may lose.
	maxLost = 1 << 20
)

// Repaired is what Repair did.
type Repaired struct {
	// Damage is what was damaged, and is not any more.
	Damage []Damage
	// Lost is how many records could not be read. Named are those that something leads to.
	Lost  int
	Named []*store.UnreadableError
}

// Repair removes the damaged parts of the state in dir, and writes again what it can read of them and what follows from
// the records elsewhere. A record that it cannot read stays one that Get refuses, until it is deleted. A repair that was cut off is
// to be run again. The caller must see to it that no process has the state open. Its errors are those of OpenReader,
// ErrBeyondRepair, and those of the file system; except for the latter the state is unchanged then.
func Repair(ctx context.Context, dir, log string, files vfs.FS) (*Repaired, error) {
	r, err := OpenReader(ctx, dir, log, files)
	if err != nil {
		return nil, err
	}
	p := repair{r: r}
	err = p.read(ctx)
	if err = cmp.Or(err, r.Close()); err != nil || len(r.bad) == 0 {
		return &p.done, err
	}
	s, err := Open(dir, log, Options{FS: files, CacheBytes: readerCacheBytes})
	if err != nil {
		return nil, err
	}
	err = p.write(ctx, s)
	return &p.done, errors.Join(err, s.Close())
}

type repair struct {
	r    *Reader
	rows []metaRow // what is written again
	lost lost
	done Repaired
}

// read finds out what is written again and what is lost.
func (p *repair) read(ctx context.Context) error {
	r := p.r
	if r.err != nil {
		return fmt.Errorf("%w: %w", ErrBeyondRepair, r.err)
	}
	if len(r.bad) == 0 {
		return nil
	}
	r.named = maxRescued
	var readable []fingerprint
	var key []byte
	err := r.Records(ctx, func(c store.Collection, name string, rec Record, err error) error {
		key = appendRecordKey(key[:0], c, name)
		bad := r.isBad(key)
		if err != nil && (bad || r.s.isLost(key, fingerprintOf(c, name))) {
			var u *store.UnreadableError
			if errors.As(err, &u) {
				p.done.Named = append(p.done.Named, u)
			}
			return nil
		}
		if readable = append(readable, fingerprintOf(c, name)); len(readable) == changeStep {
			r.s.absent.remove(readable)
			readable = readable[:0]
		}
		if bad {
			p.rows = append(p.rows, metaRow{key: bytes.Clone(key), value: appendRecord(nil, rec.Value, rec.Entries)})
		}
		for _, e := range rec.Entries {
			if key = member.Append(appendIndex(key[:0], c, e.Index), e.SortKey, name); r.isBad(key) {
				p.rows = append(p.rows, metaRow{key: bytes.Clone(key)})
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	// The fingerprints without a record that can be read are those of lost ones.
	r.s.absent.remove(readable)
	if p.done.Lost = r.s.absent.len(); p.done.Lost > maxLost {
		return fmt.Errorf("%w: it would lose %d records", ErrBeyondRepair, p.done.Lost)
	}
	r.s.absent.all(maxLost, func(all []fingerprint) { p.lost.records = slices.Clone(all) })
	for _, bad := range r.bad {
		if bad.from[0] <= kindRecord && bad.to[0] >= kindRecord {
			p.lost.spans = append(p.lost.spans, bad)
		}
	}
	p.done.Damage = r.damage
	return nil
}

// write changes the state. What is lost is noted first: from then on no record of a damaged part can seem to be absent.
func (p *repair) write(ctx context.Context, s *State) error {
	if p.done.Lost > 0 && len(p.lost.spans) > 0 {
		c := Change{Collection: Lost, Key: strconv.Itoa(len(s.allLost())), Value: p.lost.append(nil)}
		counts := s.meta.counts[Lost]
		counts.Records++
		counts.Bytes += int64(len(c.Key) + len(c.Value))
		b := Batch{
			Sequence: s.Sequence(), Changes: slices.Values([]Change{c}), Counts: map[store.Collection]Counts{Lost: counts},
		}
		if err := s.write(ctx, b, true); err != nil {
			return err
		}
		if key := appendRecordKey(nil, Lost, c.Key); p.r.isBad(key) {
			p.rows = append(p.rows, metaRow{key: key, value: appendRecord(nil, c.Value, nil)})
		}
	}
	slices.SortFunc(p.rows, func(a, b metaRow) int { return bytes.Compare(a.key, b.key) })
	path := s.fs.PathJoin(s.dir, "repair"+partSuffix)
	for _, bad := range p.r.bad {
		in := pebble.KeyRange{Start: bad.from, End: after(bad.to)}
		first, _ := slices.BinarySearchFunc(p.rows, in.Start, func(r metaRow, key []byte) int { return bytes.Compare(r.key, key) })
		last, _ := slices.BinarySearchFunc(p.rows, in.End, func(r metaRow, key []byte) int { return bytes.Compare(r.key, key) })
		rows, err := s.described(bad.from)
		if err != nil {
			return err
		}
		if rows = append(rows, p.rows[first:last]...); len(rows) == 0 {
			err = s.guard(func() error { return s.db.Excise(ctx, in) })
		} else {
			err = s.ingest(ctx, path, func(_ context.Context, w *sstable.Writer) error {
				for _, row := range rows {
					if err := w.Set(row.key, row.value); err != nil {
						return err
					}
				}
				return nil
			}, in)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", bad, err)
		}
	}
	return nil
}

// described is what describes the state, from a key on.
func (s *State) described(from []byte) (rows []metaRow, err error) {
	if from[0] != kindMeta {
		return nil, nil
	}
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: []byte{kindMeta + 1}})
	if err != nil {
		return nil, err
	}
	for ok := it.First(); ok; ok = it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return nil, errors.Join(err, it.Close())
		}
		rows = append(rows, metaRow{key: bytes.Clone(it.Key()), value: bytes.Clone(value)})
	}
	return rows, it.Close()
}
