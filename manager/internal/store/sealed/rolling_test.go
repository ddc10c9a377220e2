package sealed_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/manager/internal/crypt"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/sealed"
)

// TestRollingChange: managers that share an engine change their key one after the other. What the last one put under the
// older key after the first one's pass, and before it was killed, is still re-encrypted.
func TestRollingChange(t *testing.T) {
	for name, before := range map[string]sealed.Options{
		"another key": {Ring: keys(t, "k2", "k1")},
		"from plain":  {Ring: keys(t, "k2"), DecryptOnly: true},
		"from no key": {},
	} {
		synctest.Test(t, func(t *testing.T) {
			t.Log(name)
			engine := shared{mem.New(mem.Options{})}
			after := keys(t, "k2")
			if before.Ring != nil {
				after = keys(t, append(slices.DeleteFunc(before.Ring.IDs(), func(id string) bool { return id == "k2" }), "k2")...)
			}
			before.Places = places()
			old, _, err := sealed.Open(t.Context(), engine, before)
			if err != nil {
				t.Fatal(err)
			}
			put(t, old, "a", "4242")
			has(t, old, "a", "4242")
			first := open(t, engine, after)
			if r, err := first.Rewrite(t.Context()); err != nil || r.Rewritten != 2 || len(r.Retired) == 0 {
				t.Errorf("%+v %v", r, err)
			}
			put(t, old, "b", "4343") // its last call: it is killed and does not list its key again
			second := open(t, engine, after)
			if len(second.Listed()) < 2 {
				t.Errorf("it has not looked yet, and lists %q", second.Listed())
			}
			runUntilSettled(t, second)
			for key, value := range map[string]string{"a": "4242", "b": "4343"} {
				under(t, engine, key, "k2", "k2")
				has(t, open(t, engine, keys(t, "k2")), key, value)
			}
		})
	}
}

// TestValuesOfAManagerThatStoppedLater: an older manager puts values after the pass of its successor, and is killed before
// it lists its key again. Nobody starts after that. The successor keeps the key until it has put these values again.
func TestValuesOfAManagerThatStoppedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := shared{mem.New(mem.Options{})}
		older := open(t, engine, keys(t, "k2", "k1"))
		put(t, older, "a", "4242")
		newer := open(t, engine, keys(t, "k1", "k2"))
		var last sync.WaitGroup
		last.Go(func() {
			time.Sleep(30 * time.Second)
			put(t, older, "b", "4343")
			under(t, engine, "b", "k1", "k1")
			if !slices.Contains(newer.Listed(), "k1") {
				t.Errorf("a value needs k1, listed %q", newer.Listed())
			}
		})
		runUntilSettled(t, newer)
		last.Wait()
		under(t, engine, "b", "k2", "k2")
		has(t, open(t, engine, keys(t, "k2")), "b", "4343")
	})
}

// runUntilSettled runs passes until only the key k2 is listed, for ten minutes at most.
func runUntilSettled(t *testing.T, s *sealed.Store) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	s.Run(ctx, func(_ sealed.Report, err error) {
		if err != nil {
			t.Error(err)
		}
		if slices.Equal(s.Listed(), []string{"k2"}) {
			cancel()
		}
	})
	if !slices.Equal(s.Listed(), []string{"k2"}) {
		t.Errorf("after ten minutes it lists %q", s.Listed())
	}
}

// TestDecryptOnly: such a manager reads what others encrypt, puts in plain, says so on the record, and makes none itself.
func TestDecryptOnly(t *testing.T) {
	engine := shared{mem.New(mem.Options{})}
	only := sealed.Options{Ring: keys(t, "k1"), Places: places(), DecryptOnly: true}
	st, reader, err := sealed.Open(t.Context(), engine, only)
	if err != nil {
		t.Fatal(err)
	}
	put(t, st, "a", "4242")
	under(t, engine, "a", "", "")
	if _, err := get(t, engine, sealed.Collection, "keys"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("it made a record: %v", err)
	}
	if _, _, err := sealed.Open(t.Context(), engine, sealed.Options{Places: places()}); err != nil {
		t.Errorf("a manager without keys: %v", err)
	}
	writer := open(t, engine, keys(t, "k1"))
	put(t, writer, "b", "4343")
	for key, value := range map[string]string{"a": "4242", "b": "4343"} {
		has(t, reader, key, value)
		has(t, writer, key, value)
	}
	if r, err := writer.Rewrite(t.Context()); err != nil || r.Rewritten != 2 || !slices.Equal(r.Retired, []string{""}) {
		t.Errorf("%+v %v", r, err)
	}
	has(t, reader, "a", "4242")
	// It puts one of them in plain again, and its start lists that.
	put(t, reader, "b", "4444")
	under(t, engine, "b", "", "")
	if _, _, err := sealed.Open(t.Context(), engine, only); err != nil {
		t.Error(err)
	}
	if got := open(t, alone{engine}, keys(t, "k1")).Listed(); !slices.Equal(got, []string{"", "k1"}) {
		t.Errorf("listed %q", got)
	}
	only.Ring = keys(t, "k2")
	if _, _, err := sealed.Open(t.Context(), engine, only); err == nil || !strings.Contains(err.Error(), `lacks the key "k1"`) {
		t.Errorf("without the key: %v", err)
	}
}

// TestManagerWithoutKeys: such a manager separates what it cannot read from what nobody can, lists that it puts values in
// plain once others encrypt, and learns of their keys within a minute.
func TestManagerWithoutKeys(t *testing.T) {
	for name, ring := range map[string]*crypt.Keyring{"no file": nil, "older file": keys(t, "k1")} {
		synctest.Test(t, func(t *testing.T) {
			t.Log(name)
			engine := shared{mem.New(mem.Options{})}
			var lacks []string
			st, older, err := sealed.Open(t.Context(), engine, sealed.Options{Ring: ring, Places: places(), Lacks: func(id string) { lacks = append(lacks, id) }})
			if err != nil {
				t.Fatal(err)
			}
			put(t, st, "a", "4242")
			newer := open(t, engine, keys(t, "k1", "k2"))
			if r, err := newer.Rewrite(t.Context()); err != nil || r.Rewritten != 2 {
				t.Errorf("%+v %v", r, err)
			}
			put(t, st, "b", "4343") // without knowing of the others
			has(t, newer, "b", "4343")
			runUntilSettled(t, newer)
			put(t, st, "c", "4545") // it continues for as long as nobody restarts it
			ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
			defer cancel()
			older.Run(ctx, nil)
			if !slices.Equal(lacks, []string{"k2"}) {
				t.Errorf("it lacks %q", lacks)
			}
			runUntilSettled(t, newer)
			for key, value := range map[string]string{"a": "4242", "b": "4343", "c": "4545"} {
				under(t, engine, key, "k2", "k2")
				has(t, newer, key, value)
				if _, err := get(t, st, "things", key); !store.ReadableElsewhere(err) || !strings.Contains(err.Error(), `encrypted under the key "k2"`) {
					t.Errorf("%s at the older manager: %v", key, err)
				}
			}
			// A key that no manager lists is nowhere.
			err = engine.Update(t.Context(), func(tx store.Tx) error {
				return tx.Put("things", "lost", keys(t, "k9").Seal(nil, "things", "lost", []byte("4444")))
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, at := range []store.Store{st, newer} {
				if _, err := get(t, at, "things", "lost"); !errors.Is(err, store.ErrUnreadable) || store.ReadableElsewhere(err) {
					t.Errorf("the lost record: %v", err)
				}
			}
			if !slices.Equal(lacks, []string{"k2"}) {
				t.Errorf("it lacks %q", lacks)
			}
		})
	}
}

// alone is the engine of one manager again, whose list is the record's.
type alone struct{ shared }

func (s alone) Capabilities() store.Capabilities { return s.Store.Capabilities() }
