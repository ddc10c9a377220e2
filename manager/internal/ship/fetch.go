package ship

import (
	"context"
	"errors"
	"fmt"

	"github.com/oncegate/oncegate/manager/internal/object"
)

// maxReads bounds how often a manifest that changes is read.
const maxReads = 100

// readShipped reads the manifest, and completes its histories by the runs that it does not name yet. Meanwhile the
// manager that ships may name these runs, merge them and delete them, which looks like the end of the tail. So readShipped
// reads again until the manifest is the same before and after. damaged has an error for each history whose tail
// ends in a *DamageError. Errors: as readManifest; those of the store.
func readShipped(ctx context.Context, s object.Store) (m *manifest, damaged map[*history]error, tail int, err error) {
	m, _, err = readManifest(ctx, s)
	for tries := 0; err == nil; tries++ {
		if tries == maxReads {
			return nil, nil, 0, fmt.Errorf("ship: the manifest changed %d times while it was read", tries)
		}
		read := m.clone()
		damaged, tail = make(map[*history]error), 0
		for i := range read.Histories {
			h := &read.Histories[i]
			if h.Tail == nil {
				continue
			}
			found, err := readTail(ctx, s, h, m.Writer)
			h.Runs = append(h.Runs, found...)
			tail += len(found)
			if isDamage(err) {
				damaged[h] = err
			} else if err != nil {
				return nil, nil, 0, err
			}
		}
		var now *manifest
		if now, _, err = readManifest(ctx, s); err == nil && m.sameAs(now) {
			return read, damaged, tail, nil
		}
		m = now // its tail is short
	}
	return nil, nil, 0, err
}

// maxDamage bounds how much damage of one tail is reported.
const maxDamage = 100

// readTail finds the runs of a history that its manifest does not name yet. Their names are numbered, and the head has
// how many there are at least; a listing shows whether a run is missing between others. Runs of another writer than the
// manifest's do not belong to it: they are left from a term that was used before the destination lost its lease and its
// manifest. readTail returns the runs before the first damage. The error has one or more *DamageError, joined, when there
// is any.
func readTail(ctx context.Context, s object.Store, h *history, writer string) ([]run, error) {
	var found []run
	var bad []error
	// It is read before the runs, so every run that it counts was written already.
	known, _, err := readHead(ctx, s, h.Tail.Term)
	if err = onlyDamage(err, &bad); err != nil {
		return nil, err
	}
	least := known.Next
	next := h.nextRun() // 0 after damage: not known
	for i := h.Tail.Next; len(bad) < maxDamage; i++ {
		name := tailName(h.Tail.Term, i)
		b, _, err := s.Get(ctx, logPrefix+"/"+name)
		if errors.Is(err, object.ErrNotFound) {
			var later []object.Info
			if later, err = s.List(ctx, logPrefix+"/"+tailPrefix(h.Tail.Term), logPrefix+"/"+name); err != nil || len(later) == 0 && i >= least {
				return found, errors.Join(append(bad, err)...)
			}
			// The manager that ships may have written this one and a later one meanwhile.
			if b, _, err = s.Get(ctx, logPrefix+"/"+name); errors.Is(err, object.ErrNotFound) {
				err = missing(logPrefix + "/" + name)
			}
		}
		if err == nil {
			var r run
			r, err = runOf(name, b, h.Log, next, writer)
			if errors.Is(err, errForeign) && i >= least {
				return found, errors.Join(bad...)
			}
			if err == nil {
				if next = r.Last + 1; len(bad) == 0 {
					found = append(found, r)
				}
				continue
			}
		}
		if err = onlyDamage(err, &bad); err != nil {
			return found, err
		}
		next = 0
	}
	return found, errors.Join(bad...)
}

// onlyDamage adds damage to bad, and returns any other error.
func onlyDamage(err error, bad *[]error) error {
	if isDamage(err) {
		*bad, err = append(*bad, err), nil
	}
	return err
}

// errForeign is in the chain of damage by an object of another writer.
var errForeign = errors.New("another manager wrote it")

// runOf returns the run of an object in the tail of a log's history. It must begin with the record next, if that is not 0.
func runOf(name string, b []byte, id string, next uint64, writer string) (run, error) {
	head, _, err := decode(b)
	var cause error
	switch {
	case err != nil:
	case head.Writer != writer:
		err, cause = errForeign, errForeign
	case head.Kind != kindRun || head.Log != id || next > 0 && head.First != next:
		err = fmt.Errorf("it is a %s of log %s from %d on, expected was a run of log %s from %d on", head.Kind, head.Log, head.First, id, next)
	}
	if err != nil {
		return run{}, &DamageError{Object: logPrefix + "/" + name, Reason: err.Error(), cause: cause}
	}
	return run{
		ref: ref{name, int64(len(b)), head.CRC64}, First: head.First, Last: head.Last, Segment: *head.Segment,
		From: head.Points[0].Time, To: head.Points[len(head.Points)-1].Time,
	}, nil
}

// fetch reads the records of an object that a manifest names, and checks that it is the same one, of the log id and as is
// says. The error is object.ErrNotFound when it is missing, and a *DamageError when it is another.
func fetch(ctx context.Context, s object.Store, r ref, id string, is func(header) bool) (h header, bodies [][]byte, err error) {
	b, _, err := s.Get(ctx, logPrefix+"/"+r.Name)
	if err != nil {
		return h, nil, err
	}
	h, records, err := decode(b)
	switch {
	case err != nil:
	case int64(len(b)) != r.Bytes || h.CRC64 != r.Sum:
		err = fmt.Errorf("it has %d bytes, with records whose sum is %s; expected are %d with %s", len(b), h.CRC64, r.Bytes, r.Sum)
	case h.Log != id || !is(h):
		err = fmt.Errorf("it is a %s of log %s from %d to %d", h.Kind, h.Log, h.First, h.Last)
	default:
		bodies, err = split(h, records)
	}
	if err != nil {
		return h, nil, &DamageError{Object: logPrefix + "/" + r.Name, Reason: err.Error()}
	}
	return h, bodies, nil
}

// fetchRun reads the records of a run.
func fetchRun(ctx context.Context, s object.Store, r run, id string) (header, [][]byte, error) {
	return fetch(ctx, s, r.ref, id, func(h header) bool { return h.Kind == kindRun && h.First == r.First && h.Last == r.Last })
}

// fetchPart reads a part of a snapshot.
func fetchPart(ctx context.Context, s object.Store, snap *snapshot, part int, id string) (header, [][]byte, error) {
	return fetch(ctx, s, snap.Parts[part], id, func(h header) bool { return h.Kind == kindSnapshot && h.Snapshot == snap.Sequence })
}
