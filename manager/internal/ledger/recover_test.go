package ledger

import (
	"slices"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// settleAll has all data centres pull from each other until nothing is left.
func settleAll(all []*dataCentre) {
	for range 2 {
		for _, to := range all {
			for _, from := range all {
				for to != from && !to.pull(from, false) {
				}
			}
		}
	}
}

// TestSecondRunIsAConflict: a data centre that lost its ledger runs a key again before anybody tells it. All data centres
// list that as a conflict, they give the first answer, and the ledger gets back what the others hold of it.
func TestSecondRunIsAConflict(t *testing.T) {
	all := newWorld(t)
	lost := all[0]
	lost.runKey("k")
	lost.runKey("other")
	settleAll(all)
	lost.clock.advance(time.Second)
	first, err := all[1].Get(t.Context(), "", "k")
	if err != nil {
		t.Fatal(err)
	}

	lost.st = mem.New(mem.Options{Clock: lost.clock.Now})
	t.Cleanup(func() { _ = lost.st.Close() })
	clear(lost.cursors)
	lost.open()
	if _, err := lost.Reserve(t.Context(), &api.ReserveRequest{Key: "k", Token: "second"}, nil); err != nil {
		t.Fatal(err)
	}
	r := api.Result{Status: 200, Body: []byte("second")}
	if err := lost.Commit(t.Context(), &FinishRequest{Key: "k", Token: "second", Result: r.AppendRaw(nil)}); err != nil {
		t.Fatal(err)
	}
	settleAll(all)
	for _, dc := range all[1:] {
		f, err := dc.Outcomes(t.Context(), lost.name, 0, 1<<46, "", 500)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // again changes nothing
			if _, err := lost.Recover(t.Context(), f.Changes); err != nil {
				t.Fatal(err)
			}
		}
		if done, err := dc.Recover(t.Context(), f.Changes); err != nil || done.New != 0 || done.Refused != len(f.Changes) {
			t.Errorf("another data centre recovers what is not its own: %+v, %v", done, err)
		}
	}
	settleAll(all)
	for _, dc := range all {
		list, _, err := dc.Conflicts(t.Context(), 10, "")
		if err != nil || len(list) != 1 || list[0].Key != "k" || len(list[0].Outcomes) != 2 {
			t.Errorf("%s lists %+v, %v", dc.name, list, err)
		}
		e, err := dc.Get(t.Context(), "", "k")
		if err != nil || string(e.Result) != string(first.Result) {
			t.Errorf("%s answers %q, the first answer was %q, %v", dc.name, e.Result, first.Result, err)
		}
		if e, err := dc.Get(t.Context(), "", "other"); err != nil || e.Origin != lost.name {
			t.Errorf("%s: %+v, %v", dc.name, e, err)
		}
		if mine, theirs := dc.digest(lost.name), all[1].digest(lost.name); !slices.Equal(mine, theirs) {
			t.Errorf("%s holds %v of %s, and %s holds %v", dc.name, mine, lost.name, all[1].name, theirs)
		}
	}
}
