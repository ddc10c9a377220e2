package jobs

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// loadPaused returns the paused functions in order. With a *store.UnreadableError it returns those that it could read.
func loadPaused(tx store.Tx) ([]string, error) {
	b, err := tx.Get(colControl, pausedKey)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return decodeNames(colControl, pausedKey, b, MaxPaused)
}

const namesVersion = 1

func encodeNames(names []string) []byte {
	b := []byte{namesVersion}
	for _, n := range names {
		b = appendString(b, n)
	}
	return b
}

// decodeNames reads a record of names. With an error it returns the names before the damage.
func decodeNames(c store.Collection, key string, b []byte, most int) ([]string, error) {
	d := decoder{b: b}
	d.version(namesVersion)
	var names []string
	for len(d.b) > 0 {
		name := d.string()
		if d.err == nil && (CheckName("", name) != nil || len(names) == most || len(names) > 0 && names[len(names)-1] >= name) {
			d.fail()
		}
		if d.err != nil {
			break
		}
		names = append(names, name)
	}
	if len(names) == 0 { // then there is no record
		d.fail()
	}
	if d.err != nil {
		return names, unreadable(c, key, "%v", d.err)
	}
	return names, nil
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
		names, err := loadPaused(tx)
		if err != nil {
			return err
		}
		i, found := slices.BinarySearch(names, function)
		switch {
		case found:
			return nil
		case len(names) >= MaxPaused:
			return invalid("function", function, "at most "+strconv.Itoa(MaxPaused)+" paused functions at once")
		}
		return savePaused(tx, slices.Insert(names, i, function), version)
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
		names, err := loadPaused(tx)
		if err != nil {
			return err
		}
		i, found := slices.BinarySearch(names, function)
		if !found {
			return nil
		}
		notifyQueued(tx, function)
		return savePaused(tx, slices.Delete(names, i, i+1), version)
	})
}

// Function describes one function.
type Function struct {
	Name   string
	Paused bool
	// Queued, Scheduled, Active and Dead count its jobs in these states, each up to MaxCounted. Active counts those among
	// the MaxActive jobs whose leases end first.
	Queued, Scheduled, Active, Dead int
}

// MaxCounted is the largest count in a Function, and MaxActive is how many active jobs of all functions are looked at.
const (
	MaxCounted = 1000
	MaxActive  = 100_000
)

// FunctionPage is one page of functions.
type FunctionPage struct {
	Functions []Function
	// Cursor leads to the next page; empty when this is the last one.
	Cursor string
}

// Functions lists, by name, the functions that have jobs or are paused. limit:
// 1 to MaxLimit, 100 when 0.
func (q *Queue) Functions(ctx context.Context, limit int, after string) (FunctionPage, error) {
	if limit == 0 {
		limit = 100
	}
	if err := checkRange("limit", limit, 1, MaxLimit); err != nil {
		return FunctionPage{}, err
	}
	if after != "" {
		if err := CheckName("cursor", after); err != nil {
			return FunctionPage{}, err
		}
	}
	var page FunctionPage
	var names, paused []string
	err := q.store.View(ctx, func(tx store.Tx) error {
		var err error
		if paused, err = loadPaused(tx); err != nil && !q.opt.Unreadable.Met(err) {
			return err
		}
		names, err = functionsWithJobs(tx, after, limit+1)
		return err
	})
	if err != nil {
		return FunctionPage{}, err
	}
	active, err := q.activeJobs(ctx)
	if err != nil {
		return FunctionPage{}, err
	}
	for _, more := range [][]string{paused, slices.Collect(maps.Keys(active))} {
		for _, name := range more {
			if name > after {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > limit {
		names = names[:limit]
		page.Cursor = names[limit-1]
	}
	for _, name := range names {
		f := Function{Name: name, Active: active[name]}
		_, f.Paused = slices.BinarySearch(paused, name)
		if err := q.store.View(ctx, f.count); err != nil {
			return FunctionPage{}, err
		}
		page.Functions = append(page.Functions, f)
	}
	return page, nil
}

// Function describes one function; one without jobs that is not paused has zeros.
func (q *Queue) Function(ctx context.Context, name string) (Function, error) {
	f := Function{Name: name}
	if err := CheckName("function", name); err != nil {
		return f, err
	}
	active, err := q.activeJobs(ctx)
	if err != nil {
		return f, err
	}
	f.Active = active[name]
	err = q.store.View(ctx, func(tx store.Tx) error {
		paused, err := loadPaused(tx)
		if err != nil && !q.opt.Unreadable.Met(err) {
			return err
		}
		_, f.Paused = slices.BinarySearch(paused, name)
		return f.count(tx)
	})
	return f, err
}

// count adds the jobs that are in idxFunction.
func (f *Function) count(tx store.Tx) error {
	for _, n := range []struct {
		class class
		count *int
	}{{classQueued, &f.Queued}, {classScheduled, &f.Scheduled}, {classDead, &f.Dead}} {
		from, to := functionRange(f.Name, n.class)
		hits, err := tx.Scan(colJobs, idxFunction, store.Range{From: from, To: to, Limit: MaxCounted})
		if err != nil {
			return err
		}
		*n.count = min(*n.count+len(hits), MaxCounted)
	}
	return nil
}

// activeJobs counts the active jobs of each function.
func (q *Queue) activeJobs(ctx context.Context) (map[string]int, error) {
	counts := make(map[string]int)
	r := store.Range{Limit: store.MaxScan}
	for left := MaxActive; left > 0; left -= r.Limit {
		var hits []store.Hit
		err := q.store.View(ctx, func(tx store.Tx) (err error) {
			hits, err = tx.Scan(colJobs, idxActive, r)
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, h := range hits {
			if f := activeFunction(h.SortKey); f != "" {
				counts[f]++
			}
		}
		if len(hits) < r.Limit {
			break
		}
		r.After = &hits[len(hits)-1]
	}
	return counts, nil
}

// leastPage and mostPage bound how many jobs functionsWithJobs reads at a time.
const leastPage, mostPage = 64, 4096

// functionsWithJobs lists, by name, the functions behind after that have jobs; at most limit if that is positive. Where
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
