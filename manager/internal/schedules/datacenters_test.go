package schedules_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/schedules"
)

var errLists = errors.New("lists of data centres differ")

// dataCenter is a manager with a store of its own, and what it knows of the others.
type dataCenter struct {
	*env
	name  string
	names []string
	// agreed: all data centres have the same list, as far as this one knows.
	agreed bool
}

func newDataCenter(t *testing.T, name string, names []string, c *clock) *dataCenter {
	d := &dataCenter{env: newEnv(t, memoryOpener()), name: name, names: names, agreed: true}
	d.env.clock, d.manager.store = c, clockedStore{d.manager.store.(clockedStore).Store, c}
	var err error
	if d.schedules, err = schedules.New(d.store, d.queue, schedules.Options{Homes: d}); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *dataCenter) Home(scope, key string) (string, bool) {
	name := d.names[api.Home(d.names, scope, key)]
	return name, name != d.name
}

func (d *dataCenter) Take() error {
	if !d.agreed {
		return errLists
	}
	return nil
}

// TestInstantsHaveOneJobInAllDataCenters: data centres have the same schedules and come to instants at random times, some only
// after hours. Then one is removed from the list.
func TestInstantsHaveOneJobInAllDataCenters(t *testing.T) {
	t.Parallel()
	var c clock
	c.set(begin)
	names := []string{"dc1", "dc2", "dc3"}
	all := map[string]*dataCenter{}
	for _, name := range names {
		all[name] = newDataCenter(t, name, names, &c)
	}
	var scheduled []string
	homes := map[string]int{}
	for i := range 30 {
		name := fmt.Sprint("s", i)
		scheduled = append(scheduled, name)
		for _, d := range all {
			d.put(name, schedules.Spec{Cron: "*/10 * * * *", Missed: schedules.MissedAll, DataCenters: schedules.DataCentersHome})
		}
		s := all["dc1"].get(name)
		homes[all["dc1"].schedules.Home(&s)]++
	}
	if len(homes) != 3 {
		t.Fatalf("homes: %v", homes)
	}
	round := func() {
		c.advance(time.Duration(rand.IntN(40)) * time.Minute)
		for _, d := range all {
			if rand.IntN(3) == 0 {
				d.due()
			}
		}
	}
	for range 40 {
		round()
	}
	for _, d := range all {
		d.due()
	}
	// dc2 decides one more instant and is removed. The others come to that instant only later.
	removed := all["dc2"]
	delete(all, "dc2")
	c.advance(10 * time.Minute)
	removed.due()
	until := *c.now.Load()
	for _, d := range all {
		d.names, d.agreed = []string{"dc1", "dc3"}, false
	}
	c.advance(10 * time.Minute)
	for _, d := range all {
		if _, err := d.schedules.RunDue(t.Context()); !errors.Is(err, errLists) {
			t.Errorf("%s, while lists may differ: %v", d.name, err)
		}
	}
	for _, d := range all {
		d.agreed = true
		d.due()
	}
	noticed := *c.now.Load()
	for range 20 {
		round()
	}
	for _, d := range all {
		d.due()
	}
	wanted := map[string]int{}
	for _, name := range scheduled {
		s := all["dc1"].get(name)
		first, elsewhere := removed.Home("schedules", name)
		for instant := begin.Add(10 * time.Minute); instant.Before(s.Next); instant = instant.Add(10 * time.Minute) {
			if elsewhere || !instant.After(until) || instant.After(noticed) {
				wanted[schedules.InstantKey(name, instant)]++
			}
		}
		if home := all["dc1"].schedules.Home(&s); home == "dc2" || elsewhere && home != first {
			t.Errorf("%s moved from %s to %s", name, first, home)
		}
	}
	for _, d := range append(slices.Collect(maps.Values(all)), removed) {
		for key, js := range d.jobs() {
			if wanted[key] -= len(js); wanted[key] < 0 {
				t.Errorf("%d jobs too many with the key %s", -wanted[key], key)
			}
		}
	}
	for key, n := range wanted {
		if n > 0 {
			t.Errorf("no job has the key %s", key)
		}
	}
}

// A schedule that was paused while the list changed has its first instant at its new home.
func TestResumedScheduleHasItsNewHomesFirstInstant(t *testing.T) {
	t.Parallel()
	var c clock
	c.set(begin)
	names := []string{"dc1", "dc2", "dc3"}
	all := map[string]*dataCenter{}
	for _, name := range names {
		all[name] = newDataCenter(t, name, names, &c)
	}
	var moved []string // schedules whose home is dc2
	for i := range 30 {
		name := fmt.Sprint("s", i)
		for _, d := range all {
			d.put(name, schedules.Spec{Cron: "@daily", DataCenters: schedules.DataCentersHome})
			if _, err := d.schedules.Pause(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		if _, elsewhere := all["dc2"].Home("schedules", name); !elsewhere {
			moved = append(moved, name)
		}
	}
	delete(all, "dc2")
	for _, d := range all {
		d.names = []string{"dc1", "dc3"}
		for _, name := range moved {
			if _, err := d.schedules.Resume(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.advance(24 * time.Hour)
	n := 0
	for _, d := range all {
		d.due()
		for _, js := range d.jobs() {
			n += len(js)
		}
	}
	if len(moved) == 0 || n != len(moved) {
		t.Errorf("%d schedules have %d jobs", len(moved), n)
	}
}

// TestEachDataCenterHasAJob: without a home, data centres are independent.
func TestEachDataCenterHasAJob(t *testing.T) {
	t.Parallel()
	var c clock
	c.set(begin)
	for _, name := range []string{"dc1", "dc2"} {
		d := newDataCenter(t, name, []string{"dc1", "dc2"}, &c)
		c.set(begin)
		s := d.put("s", schedules.Spec{Cron: "@hourly"})
		if s.DataCenters != schedules.DataCentersEach || d.schedules.Home(&s) != "" {
			t.Errorf("%+v", s)
		}
		c.advance(time.Hour)
		d.due()
		d.wantInstants("s", "2026-03-28T13:00:00Z")
	}
}
