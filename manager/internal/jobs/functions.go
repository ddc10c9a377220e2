package jobs

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/internal/codec"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// pausedList are paused functions in order of their names, and since when each is paused.
type pausedList struct {
	names []string
	since []time.Time
}

// loadPaused returns the paused functions. With a *store.UnreadableError it returns those that it could read.
func loadPaused(tx store.Tx) (pausedList, error) {
	b, err := tx.Get(colControl, pausedKey)
	if errors.Is(err, store.ErrNotFound) {
		return pausedList{}, nil
	}
	if err != nil {
		return pausedList{}, err
	}
	return decodePaused(pausedKey, b)
}

const pausedVersion = 1

func (p *pausedList) encode() []byte {
	b := []byte{pausedVersion}
	for i, n := range p.names {
		b = appendStamp(codec.AppendString(b, n), p.since[i])
	}
	return b
}

// decodePaused reads the record of paused functions. With an error it returns those before the damage.
func decodePaused(key string, b []byte) (pausedList, error) {
	d := decoder{codec.NewReader(b)}
	d.version(pausedVersion)
	var p pausedList
	for len(d.Rest()) > 0 {
		name, since, n := d.String(), d.stamp(), len(p.names)
		if d.Err() == nil && (CheckName("", name) != nil || n == MaxPaused || n > 0 && p.names[n-1] >= name) {
			d.fail()
		}
		if d.Err() != nil {
			break
		}
		p.names, p.since = append(p.names, name), append(p.since, since)
	}
	if len(p.names) == 0 { // then there is no record
		d.fail()
	}
	if d.Err() != nil {
		return p, unreadable(colControl, key, "%v", d.Err())
	}
	return p, nil
}

// Pause stops the delivery of a function's jobs. Jobs that workers have leased continue. Queued, new and due jobs stay
// where they are until Resume. Once Pause has returned, no later claim delivers one. Pausing twice is not an error. A
// *FieldError says that MaxPaused functions are paused already.
func (q *Queue) Pause(ctx context.Context, function string) error {
	if err := CheckName("function", function); err != nil {
		return err
	}
	version := newToken()
	return q.store.Update(ctx, func(tx store.Tx) error {
		p, err := loadPaused(tx)
		if err != nil {
			return err
		}
		i, found := slices.BinarySearch(p.names, function)
		switch {
		case found:
			return nil
		case len(p.names) >= MaxPaused:
			return invalid("function", function, "at most "+strconv.Itoa(MaxPaused)+" paused functions at once")
		}
		return savePaused(tx, pausedList{slices.Insert(p.names, i, function), slices.Insert(p.since, i, now(tx))}, version)
	})
}

// Resume starts the delivery of a function's jobs again and wakes waiting claims. Resuming a function that is not
// paused is not an error.
func (q *Queue) Resume(ctx context.Context, function string) error {
	if err := CheckName("function", function); err != nil {
		return err
	}
	version := newToken()
	return q.store.Update(ctx, func(tx store.Tx) error {
		p, err := loadPaused(tx)
		if err != nil {
			return err
		}
		i, found := slices.BinarySearch(p.names, function)
		if !found {
			return nil
		}
		notifyQueued(tx, function)
		return savePaused(tx, pausedList{slices.Delete(p.names, i, i+1), slices.Delete(p.since, i, i+1)}, version)
	})
}

// leastPage and mostPage bound how many jobs functionsWithJobs reads at a time.
const leastPage, mostPage = 64, 4096

// functionsWithJobs lists, by name, the functions after `after` that have jobs; at most limit if that is positive. Where
// functions have few jobs it reads those of many functions at a time. Where they have many it skips from one function
// to the next.
func functionsWithJobs(tx store.Tx, after string, limit int) ([]string, error) {
	from := ""
	if after != "" {
		from = afterFunction(after)
	}
	var names []string
	for page := leastPage; ; {
		hits, err := tx.Scan(colJobs, idxFunction, store.Range{From: from, Limit: page})
		if err != nil {
			return names, err
		}
		before := len(names)
		for _, h := range hits {
			name := functionOf(h.SortKey)
			if len(names) > 0 && names[len(names)-1] == name {
				continue
			}
			if names = append(names, name); len(names) == limit {
				return names, nil
			}
		}
		if len(hits) < page {
			return names, nil
		}
		from = afterFunction(names[len(names)-1])
		if found := len(names) - before; found >= 4 {
			page = min(2*page, mostPage)
		} else {
			page = max(page/2, leastPage)
		}
	}
}
