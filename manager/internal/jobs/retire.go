package jobs

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// markKeyed lets claims look for jobs of the function with concurrency keys. Each transaction in which a job begins to wait
// with one calls it. If it returns an error it has written nothing: the settings cannot be read, or have no room. Without
// this, the scan of restoreSettings might miss a job that begins to wait at the same time, and no claim would find it.
func markKeyed(tx store.Tx, function string) error {
	all, err := loadSettings(tx)
	if s := all.find(function); s != nil && s.keyed == keyedUsed {
		return nil
	}
	if err != nil {
		return err
	}
	return changeSetting(tx, function, func(s *setting) { s.keyed = keyedUsed })
}

// cannotWait reports whether err says that a job cannot be read, or cannot wait with its concurrency key. Nothing was
// written.
func (q *Queue) cannotWait(err error) bool {
	return q.opt.Unreadable.Met(err) || errors.Is(err, ErrInvalid)
}

// retireEvery is the pause between two rounds of retireKeyed. While there is room for only a few more settings, there is
// none.
const retireEvery = 10 * time.Minute

// retireKeyed removes the settings of functions that have no jobs with concurrency keys any more. A round looks at up to
// dutyBatch functions.
//
// A scan may miss a job that begins to wait meanwhile. So one transaction marks a function, and only a later one that
// finds the mark and no job removes its setting. Each transaction in which a job begins to wait reads the mark. If it was
// committed before the mark, that scan finds the job. Else it removes the mark: it and the removal of the setting change the
// same record, so one of them finds what the other wrote.
func (q *Queue) retireKeyed(ctx context.Context) error {
	var names []string
	err := q.store.View(ctx, func(tx store.Tx) error {
		all, err := q.functionSettings(tx)
		if err == nil {
			names = q.settings.retirable(all, now(tx))
		}
		return err
	})
	if q.opt.Unreadable.Met(err) || err == nil && len(names) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	active, more, err := q.activeJobs(ctx)
	if err != nil || more { // one of those that were not counted may need its setting
		return err
	}
	return q.store.Update(ctx, func(tx store.Tx) error {
		all, err := loadSettings(tx) // before the scans
		if err != nil {
			return err
		}
		changed := false
		for _, name := range names {
			s := all.find(name)
			if s == nil || s.keyed == 0 {
				continue
			}
			used, err := hasAny(tx, name, classKeyed, classScheduled)
			if err != nil {
				return err
			}
			before := s.keyed
			switch {
			case used || active[name] > 0:
				s.keyed = keyedUsed
			case before == keyedUsed:
				s.keyed = keyedUnused
			default:
				s.keyed = 0
			}
			changed = changed || s.keyed != before
		}
		if !changed {
			return nil
		}
		return slices.DeleteFunc(all, setting.empty).save(tx)
	})
}

// retirable returns the functions that retireKeyed looks at now: those that are marked, and the next of the others.
func (p *settingsCache) retirable(all settings, at time.Time) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	crowded := len(all) > MaxSettings-MaxSettings/10
	if since := at.Sub(p.retired); !crowded && since >= 0 && since < retireEvery {
		return nil
	}
	var names, rest []string
	for _, s := range all {
		switch {
		case s.keyed == keyedUnused && len(names) < dutyBatch:
			names = append(names, s.name)
		case s.keyed == keyedUsed && s.name > p.retiredTo:
			rest = append(rest, s.name)
		}
	}
	next := rest[:min(len(rest), dutyBatch-len(names))]
	switch p.retired = at; {
	case len(next) == len(rest):
		p.retiredTo = ""
	case len(next) > 0:
		p.retiredTo = next[len(next)-1]
	}
	return append(names, next...)
}

// hasAny reports whether the function has a job of one of the classes.
func hasAny(tx store.Tx, function string, classes ...class) (bool, error) {
	for _, c := range classes {
		from, to := functionRange(function, c)
		hits, err := tx.Scan(colJobs, idxFunction, store.Range{From: from, To: to, Limit: 1})
		if err != nil || len(hits) > 0 {
			return len(hits) > 0, err
		}
	}
	return false, nil
}
