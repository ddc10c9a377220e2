package jobs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/codec"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// setting is what is set for one function.
type setting struct {
	name   string
	paused time.Time // since when; zero while it is not paused
	keyed  keyed
	limits Limits
}

// keyed says whether claims look for jobs of a function with concurrency keys.
type keyed byte

const (
	keyedUsed   keyed = iota + 1 // such jobs wait, or did
	keyedUnused                  // none waited when retireKeyed looked
)

func (s setting) compare(o setting) int { return cmp.Compare(s.name, o.name) }

// empty reports whether nothing is set.
func (s setting) empty() bool { return s == setting{name: s.name} }

// settings are those of all functions for which something is set, by their names.
type settings []setting

// find returns the setting of a function, nil if there is none.
func (all settings) find(function string) *setting {
	if i, found := slices.BinarySearchFunc(all, setting{name: function}, setting.compare); found {
		return &all[i]
	}
	return nil
}

const settingsVersion = 1

func (all settings) encode() []byte {
	b := []byte{settingsVersion}
	for _, s := range all {
		b = appendStamp(codec.AppendString(b, s.name), s.paused)
		b = append(b, byte(s.keyed))
		for _, n := range []int{s.limits.MaxRunning, s.limits.MaxRunningPerKey, s.limits.Rate.Count, int(s.limits.Rate.Per / time.Microsecond)} {
			b = binary.AppendUvarint(b, uint64(n))
		}
	}
	return b
}

// decodeSettings reads the record of all settings. With an error it returns those before the damage.
func decodeSettings(key string, b []byte) (settings, error) {
	d := decoder{codec.NewReader(b)}
	d.version(settingsVersion)
	var all settings
	for len(d.Rest()) > 0 && d.Err() == nil {
		s := setting{name: d.String(), paused: d.stamp(), keyed: keyed(d.Byte())}
		s.limits = Limits{MaxRunning: d.Count(MaxLimitCount), MaxRunningPerKey: d.Count(MaxLimitCount), Rate: Rate{Count: d.Count(MaxLimitCount), Per: d.duration()}}
		n := len(all)
		if d.Err() == nil && (CheckName("", s.name) != nil || n == MaxSettings || n > 0 && all[n-1].name >= s.name || s.keyed > keyedUnused || s.limits.check() != nil) {
			d.fail()
		}
		if d.Err() == nil {
			all = append(all, s)
		}
	}
	if len(all) == 0 { // then there is no record
		d.fail()
	}
	if d.Err() != nil {
		return all, unreadable(colControl, key, "%v", d.Err())
	}
	return all, nil
}

// loadSettings returns all settings. With a *store.UnreadableError it returns those that it could read.
func loadSettings(tx store.Tx) (settings, error) {
	return store.Read(tx, colControl, settingsKey, decodeSettings)
}

// save writes all settings, and their digest as the version.
func (all settings) save(tx store.Tx) error {
	if len(all) == 0 {
		return errors.Join(tx.Delete(colControl, settingsKey), tx.Delete(colControl, settingsVersionKey))
	}
	b := all.encode()
	version := sha256.Sum256(b)
	if err := tx.Put(colControl, settingsVersionKey, version[:]); err != nil {
		return err
	}
	return tx.Put(colControl, settingsKey, b)
}

// changeSetting changes the setting of a function in a transaction.
func changeSetting(tx store.Tx, function string, change func(*setting)) error {
	all, err := loadSettings(tx)
	if err != nil {
		return err
	}
	i, found := slices.BinarySearchFunc(all, setting{name: function}, setting.compare)
	s := setting{name: function}
	if found {
		s = all[i]
	}
	before := s
	change(&s)
	switch {
	case s == before:
		return nil
	case s.empty():
		all = slices.Delete(all, i, i+1)
	case found:
		all[i] = s
	case len(all) >= MaxSettings:
		return invalid("function", function, "at most "+strconv.Itoa(MaxSettings)+" functions that are paused, limited or with concurrency keys")
	default:
		all = slices.Insert(all, i, s)
	}
	return all.save(tx)
}

// restoreSettings writes what is left of settings that cannot be read: of which functions claims look for concurrency keys.
// Those are all with such jobs, and those in the part that can be read, whose jobs may begin to wait meanwhile.
func restoreSettings(tx store.Tx) error {
	readable, err := loadSettings(tx)
	if err != nil && !errors.Is(err, store.ErrUnreadable) {
		return err
	}
	marks := make(map[string]bool)
	for _, s := range readable {
		if s.keyed != 0 {
			marks[s.name] = true
		}
	}
	for from := ""; ; {
		hits, err := tx.Scan(colJobs, idxKeyed, store.Range{From: from, Limit: 1})
		if err != nil {
			return err
		}
		if len(hits) == 0 {
			break
		}
		function := functionOf(hits[0].SortKey)
		if function != "" && len(marks) < MaxSettings {
			marks[function] = true
		}
		from = afterFunction(function)
	}
	var all settings
	for _, function := range slices.Sorted(maps.Keys(marks)) {
		all = append(all, setting{name: function, keyed: keyedUsed})
	}
	return all.save(tx)
}

// notifyAllQueued wakes claims for the jobs of all functions, of up to MaxSettings by their names.
func notifyAllQueued(tx store.Tx) error {
	functions, err := functionsWithJobs(tx, "", MaxSettings)
	for _, function := range functions {
		notifyQueued(tx, function)
	}
	return err
}

// Pause stops the delivery of a function's jobs. Jobs that workers have leased continue. Queued, new and due jobs stay
// where they are until Resume. Once Pause has returned, no later claim delivers one. Pausing twice is not an error. A
// *FieldError says that MaxSettings functions have settings already.
func (q *Queue) Pause(ctx context.Context, function string) error {
	return q.change(ctx, function, func(tx store.Tx, s *setting) {
		if s.paused.IsZero() {
			s.paused = now(tx)
		}
	})
}

// Resume starts the delivery of a function's jobs again and wakes waiting claims. Resuming a function that is not
// paused is not an error.
func (q *Queue) Resume(ctx context.Context, function string) error {
	return q.change(ctx, function, func(tx store.Tx, s *setting) {
		s.paused = time.Time{}
		notifyQueued(tx, function)
	})
}

func (q *Queue) change(ctx context.Context, function string, change func(store.Tx, *setting)) error {
	if err := CheckName("function", function); err != nil {
		return err
	}
	return q.store.Update(ctx, func(tx store.Tx) error {
		return changeSetting(tx, function, func(s *setting) { change(tx, s) })
	})
}

// settingsCache caches one queue's settings, so that claims need not read thousands of functions each time.
// They Get the settings' version instead, which is a digest of them.
type settingsCache struct {
	mu      sync.Mutex
	version string
	all     settings
	many    bool     // there are enough settings to be cached
	last    settings // those that a transaction read last, for guess
	read    bool     // a transaction has read them
	// retired is when retireKeyed looked at functions last, and retiredTo the last of them; empty: it begins again.
	retired   time.Time
	retiredTo string
}

// manySettings is the number of functions from which settings are cached.
const manySettings = 64

// functionSettings returns the settings as of the transaction, like loadSettings.
func (q *Queue) functionSettings(tx store.Tx) (settings, error) {
	p := &q.settings
	p.mu.Lock()
	version, all, many := p.version, p.all, p.many
	p.mu.Unlock()
	var have string
	if many {
		// Read before the settings, so that cached settings are never older than their version.
		b, err := tx.Get(colControl, settingsVersionKey)
		if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrUnreadable) {
			return nil, err
		}
		if have = string(b); have != "" && have == version {
			return all, nil
		}
	}
	all, err := loadSettings(tx)
	if err != nil {
		return all, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.read = all, true
	p.many = len(all) >= manySettings
	if p.version = ""; p.many && have != "" {
		p.version, p.all = have, all
	}
	return all, nil
}

// guess returns the settings as the last transaction read them, and the record that shows whether they are still the
// same. known is false before the first.
func (p *settingsCache) guess() (all settings, check store.ID, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	check = store.ID{Collection: colControl, Key: settingsKey}
	if p.many {
		check.Key = settingsVersionKey
	}
	return p.last, check, p.read
}
