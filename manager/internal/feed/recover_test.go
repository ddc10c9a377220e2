package feed

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
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

// TestSecondRunIsAConflict: a data centre that lost its ledger runs a key again before it learns the first outcome. All data centres
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
	if err := lost.Commit(t.Context(), &ledger.FinishRequest{Key: "k", Token: "second", Result: r.AppendRaw(nil)}); err != nil {
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
		list, _, err := views.Conflicts(t.Context(), dc.Ledger, 10, "")
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

// TestFirstRunIsRecoveredBehindAConflict: a data centre that lost its ledger runs a key again, and another one ran it as
// well. The first outcome comes back last. It is still the answer everywhere, and all three are listed.
func TestFirstRunIsRecoveredBehindAConflict(t *testing.T) {
	all := newWorld(t)
	lost, other, third := all[0], all[1], all[2]
	commit := func(dc *dataCentre, body string) {
		t.Helper()
		r := api.Result{Status: 200, Body: []byte(body)}
		if err := dc.Commit(t.Context(), &ledger.FinishRequest{Key: "k", Token: body, Result: r.AppendRaw(nil)}); err != nil {
			t.Fatal(err)
		}
	}
	reserve := func(dc *dataCentre, token string) {
		t.Helper()
		if _, err := dc.Reserve(t.Context(), &api.ReserveRequest{Key: "k", Token: token}, nil); err != nil {
			t.Fatal(err)
		}
	}
	reserve(lost, "first")
	commit(lost, "first")
	for !other.pull(lost, false) {
	}
	reserve(third, "third")
	commit(third, "third")

	lost.st = mem.New(mem.Options{Clock: lost.clock.Now})
	t.Cleanup(func() { _ = lost.st.Close() })
	clear(lost.cursors)
	lost.open()
	reserve(lost, "again")
	for !lost.pull(third, false) {
	}
	commit(lost, "again")
	f, err := other.Outcomes(t.Context(), lost.name, 0, 1<<46, "", 500)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lost.Recover(t.Context(), f.Changes); err != nil {
		t.Fatal(err)
	}
	clear(other.cursors)
	settleAll(all)
	for _, dc := range all {
		for _, from := range all {
			if dc != from {
				dc.repair(from)
			}
		}
	}
	for _, dc := range all {
		var first api.Result
		if e, err := dc.Get(t.Context(), "", "k"); err != nil || first.ParseRaw(e.Result) != nil || string(first.Body) != "first" {
			t.Errorf("%s answers %q, %v", dc.name, first.Body, err)
		}
		list, _, err := views.Conflicts(t.Context(), dc.Ledger, 10, "")
		if err != nil || len(list) != 1 || len(list[0].Outcomes) != 3 {
			t.Errorf("%s lists %+v, %v", dc.name, list, err)
		}
		for _, origin := range all {
			if mine, theirs := dc.digest(origin.name), origin.digest(origin.name); !slices.Equal(mine, theirs) {
				t.Errorf("%s holds %v of %s, which holds %v", dc.name, mine, origin.name, theirs)
			}
		}
	}
}

// TestOrderOfImportsDoesNotMatter: two ledgers that get the same outcomes of a key in different orders hold the same in the
// end. dc1 ran the key three times, because it had forgotten its outcomes. Its hybrid clock may have been carried ahead by
// others before that.
func TestOrderOfImportsDoesNotMatter(t *testing.T) {
	t.Run("clock continues", func(t *testing.T) { testOrderOfImports(t, 10, 20, 30, 40) })
	t.Run("clock starts again", func(t *testing.T) { testOrderOfImports(t, 40, 20, 30, 10) })
	t.Run("clock starts again twice", func(t *testing.T) { testOrderOfImports(t, 40, 50, 30, 10) })
}

// testOrderOfImports imports in all orders: the outcomes of dc1 and that of dc3 between them, in the order of their runs.
func testOrderOfImports(t *testing.T, first, other, second, third uint64) {
	changes := make([]ledger.FeedChange, 4)
	for i, c := range []struct {
		origin string
		hlc    uint64
	}{{"dc1", first}, {"dc3", other}, {"dc1", second}, {"dc1", third}} {
		r := api.Result{Status: 200, Body: []byte(fmt.Sprint("run ", i))}
		changes[i] = ledger.FeedChange{
			Origin: c.origin, Key: "k", Token: fmt.Sprint("t", i), State: api.StateCommitted, HLC: c.hlc << 16, Age: time.Duration(4-i) * time.Minute, ExpiresIn: time.Hour,
			Result: r.AppendRaw(nil),
		}
	}
	twice := changes[0] // its caller sent the outcome again, after it was forgotten
	twice.HLC, twice.Age = 25<<16, 0
	changes = append(changes, twice)
	orders := [][]int{{}}
	for i := range changes {
		var longer [][]int
		for _, o := range orders {
			for at := range len(o) + 1 {
				longer = append(longer, slices.Insert(slices.Clone(o), at, i))
			}
		}
		orders = longer
	}
	var want string
	for _, order := range orders {
		dc := newWorld(t)[1]
		for range 2 { // a comparison imports all of it again
			for _, i := range order {
				dc.take(Page{Changes: changes[i : i+1]})
			}
		}
		list, _, err := views.Conflicts(t.Context(), dc.Ledger, 10, "")
		if err != nil || len(list) != 1 {
			t.Fatalf("order %v: %+v, %v", order, list, err)
		}
		got := fmt.Sprint(list[0].Outcomes, dc.digest("dc1"), dc.digest("dc3"))
		if want == "" {
			want = got
		}
		if got != want {
			t.Errorf("order %v gives\n%v, another one\n%v", order, got, want)
		}
	}
}
