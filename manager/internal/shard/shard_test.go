package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// TestLedgerKeepsItsNameOverStarts is a ledger's life, start by start.
func TestLedgerKeepsItsNameOverStarts(t *testing.T) {
	st := mem.New(mem.Options{})
	defer st.Close()
	list := func(names string) []string { return strings.Split(names, ",") }
	id := ""
	for i, start := range []struct {
		want    Want
		refused string // a part of the message
		name    string
		shards  string
		version uint64
	}{
		{Want{}, "", "", "", 0},
		{Want{Name: "A"}, "", "A", "", 0},
		{Want{}, "", "A", "", 0},
		{Want{Name: "B"}, `--shard "B": the data belong to shard "A" (ledger `, "", "", 0},
		{Want{Name: "B", Was: "C"}, `--shard "B": the data belong to shard "A" (ledger `, "", "", 0},
		{Want{Name: "B", Was: "A"}, "", "B", "", 0},
		{Want{Name: "B", Was: "A"}, "", "B", "", 0},
		{Want{Name: "A", Was: "B"}, "", "A", "", 0},

		{Want{Name: "A", Shards: list("A,B")}, "", "A", "A,B", 1},
		{Want{Name: "A", Shards: list("B,A")}, "", "A", "A,B", 1},
		{Want{Name: "A"}, "", "A", "A,B", 1},
		{Want{}, "", "A", "A,B", 1},
		{Want{Name: "A", Shards: list("A,B,C"), Version: 1}, `--shards "A,B,C": the ledger has version 1 of the list, "A,B"`, "", "", 0},
		{Want{Name: "A", Shards: list("C,A,B")}, "", "A", "A,B,C", 2},
		// A deployment that is rolled back, and a pod with yesterday's settings.
		{Want{Name: "A", Shards: list("A,B")}, `--shards "A,B": the ledger had this list before the present one, "A,B,C", and going back can run keys twice: to do it anyway, give --shards-version 3`, "", "", 0},
		{Want{Name: "A", Shards: list("A,B"), Version: 2}, `another list needs a higher --shards-version, not 2`, "", "", 0},
		{Want{Name: "A", Shards: list("A,B"), Version: 3}, "", "A", "A,B", 3},
		{Want{Name: "A", Shards: list("A,B"), Version: 3}, "", "A", "A,B", 3},
		{Want{Name: "A", Shards: list("A,B"), Version: 1}, "", "A", "A,B", 3}, // asks for what is
		{Want{Name: "A", Shards: list("A,B,C")}, "going back can run keys twice", "", "", 0},
		{Want{Name: "A", Shards: list("A,B,C"), Version: 9}, "", "A", "A,B,C", 9},
		{Want{Name: "A", Shards: list("B,C")}, "", "A", "B,C", 10},
	} {
		k, change, err := Open(t.Context(), st, start.want)
		var refused *Error
		if start.refused != "" {
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), start.refused) {
				t.Fatalf("start %d, %+v: %v; want a refusal with %q", i, start.want, err, start.refused)
			}
			continue
		}
		if err != nil {
			t.Fatalf("start %d, %+v: %v", i, start.want, err)
		}
		got := k.Identity()
		if got.Name != start.name || strings.Join(got.Shards, ",") != start.shards || got.Version != start.version {
			t.Errorf("start %d, %+v: %+v", i, start.want, got)
		}
		if id == "" {
			id = got.ID
		}
		if got.ID != id || len(id) != 32 {
			t.Errorf("start %d: id %q, was %q", i, got.ID, id)
		}
		if named, listed := change.Named(), change.Listed(); named != (change.Before.Name != got.Name) || listed != !slices.Equal(change.Before.Shards, got.Shards) {
			t.Errorf("start %d: named %v, listed %v", i, named, listed)
		}
	}
}

// TestNameBeforeList: managers that share a store and have no name would not look at the list.
func TestNameBeforeList(t *testing.T) {
	st := mem.New(mem.Options{})
	defer st.Close()
	want := Want{Name: "A", Shards: []string{"A", "B"}, Used: true}
	var refused *Error
	for range 2 {
		if _, _, err := Open(t.Context(), st, want); !errors.As(err, &refused) || !strings.Contains(err.Error(), `first start all of them with --shard "A" and without a list`) {
			t.Fatalf("%v", err)
		}
		mustOpen(t, st, Want{})
	}
	mustOpen(t, st, Want{Name: "A"})
	mustOpen(t, st, want)
}

func mustOpen(t *testing.T, st store.Store, w Want) *Keeper {
	t.Helper()
	k, _, err := Open(t.Context(), st, w)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// sharing makes an engine look like one that several managers share.
type sharing struct{ store.Store }

func (s sharing) Capabilities() store.Capabilities {
	c := s.Store.Capabilities()
	c.Shared = true
	return c
}

func owner(t *testing.T, k *Keeper, st store.Store, key string) (name string, other bool) {
	t.Helper()
	err := st.View(t.Context(), func(tx store.Tx) (err error) {
		name, other, err = k.Owner(tx, "", key)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return name, other
}

// Without a list everything is here, with one what api.Owner says.
func TestListDecidesTheOwner(t *testing.T) {
	st := mem.New(mem.Options{})
	defer st.Close()
	if name, other := owner(t, mustOpen(t, st, Want{}), st, "k"); name != "" || other {
		t.Errorf("%q, %v", name, other)
	}
	shards := []string{"A", "B", "C"}
	k, mine := mustOpen(t, st, Want{Name: "B", Shards: shards}), 0
	for i := range 300 {
		key := fmt.Sprint("key-", i)
		name, other := owner(t, k, st, key)
		if want := shards[api.Owner(shards, "", key)]; name != want || other != (want != "B") {
			t.Fatalf("%s: %q, %v; want %q", key, name, other, want)
		}
		if !other {
			mine++
		}
	}
	if mine < 60 || mine > 140 {
		t.Errorf("%d of 300 keys", mine)
	}
}

// All managers of a store go over to a list in the transaction that writes it, those with settings of
// before as well.
func TestManagersOfAStoreChangeListsTogether(t *testing.T) {
	st := sharing{mem.New(mem.Options{})}
	defer st.Close()
	one := mustOpen(t, st, Want{Name: "A", Shards: []string{"A"}})
	key := "k"
	for api.Owner([]string{"A", "B"}, "", key) == 0 {
		key += "k"
	}
	if _, other := owner(t, one, st, key); other {
		t.Fatal("it is another one's already")
	}
	mustOpen(t, st, Want{Name: "A", Shards: []string{"A", "B"}})
	if name, other := owner(t, one, st, key); name != "B" || !other {
		t.Errorf("after the change: %q, %v", name, other)
	}
	if got := one.Identity().Version; got != 1 {
		t.Errorf("version %d before it looked", got)
	}
	if c, changed := one.refresh(t.Context()); !changed || !c.Listed() || c.Named() || one.Identity().Version != 2 {
		t.Errorf("%+v, %v", c, changed)
	}
	if _, changed := one.refresh(t.Context()); changed {
		t.Error("changed again")
	}
	if _, ok := one.Record(); !ok {
		t.Error("it reads no record")
	}
}

// A manager does not start as somebody else because it cannot read who it is.
func TestUnreadableNameStopsTheStart(t *testing.T) {
	st := mem.New(mem.Options{})
	defer st.Close()
	err := st.Update(context.Background(), func(tx store.Tx) error { return tx.Put(Collection, recordKey, []byte{2, 1, 2, 3}) })
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(t.Context(), st, Want{Name: "A"}); !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("%v", err)
	}
}

func FuzzRead(f *testing.F) {
	i := Identity{ID: newID(), Name: "A", Shards: []string{"A", "B"}, Version: 3, past: []digest{{1}, {2}}, runs: []run{{7, 1 << 40}, {1<<20 - 1, 0}}}
	f.Add(i.encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		i, err := Read(recordKey, b)
		if err != nil {
			return
		}
		again, err := Read(recordKey, i.encode())
		if err != nil || again.ID != i.ID || again.Name != i.Name || !slices.Equal(again.Shards, i.Shards) || !slices.Equal(again.past, i.past) {
			t.Errorf("%+v, %+v, %v", i, again, err)
		}
	})
}
