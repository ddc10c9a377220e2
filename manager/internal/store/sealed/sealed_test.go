package sealed_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/crypt"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/sealed"
	"github.com/oncegate/oncegate/manager/internal/store/sqlite"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
)

// keys returns a keyring with a key for each name, "id" or "id=text".
func keys(t testing.TB, names ...string) *crypt.Keyring {
	t.Helper()
	var file strings.Builder
	for _, name := range names {
		id, text, _ := strings.Cut(name, "=")
		fmt.Fprintf(&file, "%s:%s\n", id, base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%-32.32s", id+text)))
	}
	ring, err := crypt.Parse([]byte(file.String()))
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

// The places of these tests: a thing leads to a part.
const (
	things = store.Collection("things")
	parts  = store.Collection("parts")
	plains = store.Collection("plains")
)

func places() []sealed.Place {
	return []sealed.Place{
		{Collection: things, Indexes: []string{"byname"}, Describe: func(hit store.Hit, plain []byte) ([]store.Entry, []store.ID, error) {
			return []store.Entry{{Index: "byname", SortKey: hit.Key}}, []store.ID{{Collection: parts, Key: hit.Key}}, nil
		}},
		{Collection: parts, Unindexed: true},
	}
}

func open(t testing.TB, st store.Store, ring *crypt.Keyring) *sealed.Store {
	t.Helper()
	_, s, err := sealed.Open(t.Context(), st, sealed.Options{Ring: ring, Places: places()})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func refused(t testing.TB, st store.Store, ring *crypt.Keyring, want string) {
	t.Helper()
	_, _, err := sealed.Open(t.Context(), st, sealed.Options{Ring: ring, Places: places()})
	var refused *sealed.Error
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

func put(t testing.TB, st store.Store, key, value string) {
	t.Helper()
	err := st.Update(t.Context(), func(tx store.Tx) error {
		err := tx.Put(things, key, []byte(value), store.Entry{Index: "byname", SortKey: key})
		return errors.Join(err, tx.Put(parts, key, []byte(value+" part")), tx.Put(plains, key, []byte(value+" plain")))
	})
	if err != nil {
		t.Fatal(err)
	}
}

func get(t testing.TB, st store.Store, c store.Collection, key string) (string, error) {
	t.Helper()
	var value []byte
	err := st.View(t.Context(), func(tx store.Tx) (err error) {
		value, err = tx.Get(c, key)
		return err
	})
	return string(value), err
}

// has fails unless key's values are those that put gave them.
func has(t testing.TB, st store.Store, key, value string) {
	t.Helper()
	for c, want := range map[store.Collection]string{things: value, parts: value + " part", plains: value + " plain"} {
		if got, err := get(t, st, c, key); err != nil || got != want {
			t.Errorf("%s %s: %q %v, want %q", c, key, got, err, want)
		}
	}
}

// under fails unless key's values are stored under the keys with these ids, "" for plain.
func under(t testing.TB, engine store.Store, key, thing, part string) {
	t.Helper()
	for c, want := range map[store.Collection]string{things: thing, parts: part} {
		value, err := get(t, engine, c, key)
		id, ok := crypt.KeyOf([]byte(value))
		if err != nil || !ok || id != want {
			t.Errorf("%s %s is under %q, want %q: %v", c, key, id, want, err)
		}
	}
}

// TestConformance runs the suite of engines on two of them whose values are sealed. It leaves out what depends on exact
// sizes, since a sealed value is larger.
func TestConformance(t *testing.T) {
	all := []sealed.Place{{Collection: "things", Describe: func(store.Hit, []byte) (entries []store.Entry, more []store.ID, err error) { return }}}
	run := func(t *testing.T, open func(ctx context.Context, dir string) (store.Store, error)) {
		storetest.RunExcept(t, func(t *testing.T) storetest.Opener {
			dir := t.TempDir()
			return func(t *testing.T) store.Store {
				st, err := open(t.Context(), dir)
				if err != nil {
					t.Fatal(err)
				}
				s, _, err := sealed.Open(t.Context(), st, sealed.Options{Ring: keys(t, "k"), Places: all})
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
		}, "LargeValues", "SizesFollowEveryChange", "SizesAreExactUnderConcurrency", "SizesSurvive")
	}
	t.Run("wal", func(t *testing.T) {
		run(t, func(ctx context.Context, dir string) (store.Store, error) { return mem.Open(ctx, dir, mem.Options{}) })
	})
	t.Run("sqlite", func(t *testing.T) {
		run(t, func(ctx context.Context, dir string) (store.Store, error) {
			return sqlite.Open(ctx, filepath.Join(dir, "db"), sqlite.Options{})
		})
	})
}

func TestSeals(t *testing.T) {
	engine := mem.New(mem.Options{})
	s := open(t, engine, keys(t, "k1"))
	put(t, s, "a", "4242")
	has(t, s, "a", "4242")
	under(t, engine, "a", "k1", "k1")
	if got, _ := get(t, engine, plains, "a"); got != "4242 plain" {
		t.Errorf("a collection that is no place holds %q", got)
	}
	// A transaction reads its own writes, and those of the run before are gone.
	err := s.Update(t.Context(), func(tx store.Tx) error {
		for i := range 100 {
			if err := tx.Put(parts, fmt.Sprint(i), fmt.Appendf(nil, "value %d", i)); err != nil {
				return err
			}
		}
		for i := range 100 {
			if b, err := tx.Get(parts, fmt.Sprint(i)); err != nil || string(b) != fmt.Sprint("value ", i) {
				return fmt.Errorf("%q %w", b, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestUnreadable: a value that does not open is unreadable, and no other is.
func TestUnreadable(t *testing.T) {
	engine := mem.New(mem.Options{})
	s := open(t, engine, keys(t, "k1"))
	put(t, s, "a", "4242")
	put(t, s, "b", "4343")
	a, _ := get(t, engine, things, "a")
	b, _ := get(t, engine, things, "b")
	flipped := []byte(a)
	flipped[len(flipped)-1] ^= 1
	foreign := keys(t, "k9").Seal(nil, string(things), "a", []byte("x"))
	for name, value := range map[string]string{"moved": b, "cut off": a[:len(a)-1], "empty": a[:1], "a flipped bit": string(flipped), "a key that is missing": string(foreign)} {
		err := engine.Update(t.Context(), func(tx store.Tx) error {
			return tx.Put(things, "a", []byte(value), store.Entry{Index: "byname", SortKey: "a"})
		})
		if err != nil {
			t.Fatal(err)
		}
		before := s.Failures()
		var u *store.UnreadableError
		if got, err := get(t, s, things, "a"); !errors.As(err, &u) || u.Collection != things || u.Key != "a" || got != "" {
			t.Errorf("%s: %q %v", name, got, err)
		}
		if s.Failures() != before+1 {
			t.Errorf("%s: not counted", name)
		}
		has(t, s, "b", "4343")
	}
}

func TestOpenRefuses(t *testing.T) {
	engine := mem.New(mem.Options{})
	put(t, engine, "a", "4242")
	if st, s, err := sealed.Open(t.Context(), engine, sealed.Options{Places: places()}); err != nil || s != nil || st != store.Store(engine) {
		t.Fatalf("without keys: %v %v %v", st, s, err)
	}
	s := open(t, engine, keys(t, "k1"))
	has(t, s, "a", "4242") // still plain
	refused(t, engine, nil, `encrypted under the key "k1"; must be given`)
	refused(t, engine, keys(t, "k2"), `lacks the key "k1"`)
	refused(t, engine, keys(t, "k1=other"), `its key "k1" is not the one`)
	refused(t, engine, keys(t, "k2", "k1=other"), `its key "k1" is not the one`)
	has(t, open(t, engine, keys(t, "k1", "k2")), "a", "4242")
	refused(t, engine, keys(t, "k1"), `lacks the key "k2"`)
	has(t, open(t, engine, keys(t, "k2", "k1")), "a", "4242")
}

// TestRotation: values are stored again under the newest key, with their index entries, and then the older key is not
// needed.
func TestRotation(t *testing.T) {
	engine := mem.New(mem.Options{})
	const n = 200
	name := func(i int) string { return fmt.Sprintf("%03d", i) }
	for i := range n {
		put(t, engine, name(i), "plain "+name(i))
	}
	for _, step := range []struct {
		ring   []string
		listed []string
	}{{[]string{"k1"}, []string{"", "k1"}}, {[]string{"k1", "k2"}, []string{"k1", "k2"}}, {[]string{"k2", "k3"}, []string{"k2", "k3"}}} {
		s := open(t, engine, keys(t, step.ring...))
		if got := s.Listed(); !slices.Equal(got, step.listed) {
			t.Errorf("listed %q, want %q", got, step.listed)
		}
		current := step.ring[len(step.ring)-1]
		r, err := s.Rewrite(t.Context())
		if err != nil || r.Rewritten != 2*n || r.Failed != 0 || !slices.Equal(r.Retired, step.listed[:1]) {
			t.Errorf("%v: %+v %v", step.ring, r, err)
		}
		if got := s.Listed(); !slices.Equal(got, []string{current}) || s.Rewritten() != 2*n {
			t.Errorf("listed %q, rewritten %d", got, s.Rewritten())
		}
		s = open(t, engine, keys(t, current))
		for i := range n {
			has(t, s, name(i), "plain "+name(i))
			under(t, engine, name(i), current, current)
		}
		for index, c := range map[string]store.Collection{"byname": things, sealed.KeyIndex: parts} {
			if got, err := engine.Len(t.Context(), c, index); err != nil || got != n {
				t.Errorf("%d in the index %s, %v", got, index, err)
			}
		}
		if r, err := s.Rewrite(t.Context()); err != nil || r.Rewritten != 0 {
			t.Errorf("again: %+v %v", r, err)
		}
	}
}

// TestRotationLeavesWhatItCannotRead: the key of such a value stays on the record.
func TestRotationLeavesWhatItCannotRead(t *testing.T) {
	engine := mem.New(mem.Options{})
	s := open(t, engine, keys(t, "k1"))
	put(t, s, "a", "4242")
	put(t, s, "b", "4343")
	err := engine.Update(t.Context(), func(tx store.Tx) error {
		b, err := tx.Get(things, "a")
		return errors.Join(err, tx.Put(things, "a", append(b[:len(b)-1:len(b)-1], b[len(b)-1]^1), store.Entry{Index: "byname", SortKey: "a"}))
	})
	if err != nil {
		t.Fatal(err)
	}
	s = open(t, engine, keys(t, "k1", "k2"))
	if r, err := s.Rewrite(t.Context()); err != nil || r.Rewritten != 3 || r.Failed != 1 || !slices.Equal(r.Retired, []string{""}) {
		t.Errorf("%+v %v", r, err)
	}
	if got := s.Listed(); !slices.Equal(got, []string{"k1", "k2"}) {
		t.Errorf("listed %q", got)
	}
	if err := engine.Update(t.Context(), func(tx store.Tx) error { return tx.Delete(things, "a") }); err != nil {
		t.Fatal(err)
	}
	s = open(t, engine, keys(t, "k1", "k2"))
	if r, err := s.Rewrite(t.Context()); err != nil || !slices.Equal(r.Retired, []string{"k1"}) {
		t.Errorf("%+v %v", r, err)
	}
}

// TestOlderManager: a manager with an older file neither takes values back nor loses its key for long.
func TestOlderManager(t *testing.T) {
	engine := shared{mem.New(mem.Options{})}
	older := open(t, engine, keys(t, "k2", "k1"))
	put(t, older, "a", "4242")
	newer := open(t, engine, keys(t, "k1", "k2"))
	pass := func(s *sealed.Store) (reports []sealed.Report) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.Run(ctx, func(r sealed.Report, err error) {
				if err != nil {
					t.Error(err)
				}
				reports = append(reports, r)
				cancel()
			})
		}()
		if s == older { // it has nothing to do, so it ends only on request
			for record := ""; !strings.Contains(record, `"k1":`); record, _ = get(t, engine, sealed.Collection, "keys") {
				time.Sleep(time.Millisecond)
			}
			cancel()
		}
		<-done
		return reports
	}
	if r := pass(newer); len(r) != 1 || r[0].Rewritten != 2 || !slices.Contains(r[0].Retired, "k1") {
		t.Errorf("%+v", r)
	}
	put(t, older, "b", "4343") // under a key that the record no longer has
	if r := pass(older); len(r) != 0 || !slices.Equal(older.Listed(), []string{"", "k1", "k2"}) {
		t.Errorf("%+v, listed %q", r, older.Listed())
	}
	under(t, engine, "b", "k1", "k1")
	refused(t, engine, keys(t, "k2"), `lacks the key "k1"`)
	if r := pass(newer); len(r) != 1 || r[0].Rewritten != 2 || !slices.Contains(r[0].Retired, "k1") {
		t.Errorf("%+v", r)
	}
	for key, value := range map[string]string{"a": "4242", "b": "4343"} {
		has(t, older, key, value)
		under(t, engine, key, "k2", "k2")
	}
}

// shared is an engine that says that managers share it.
type shared struct{ *mem.Store }

func (s shared) Capabilities() store.Capabilities {
	c := s.Store.Capabilities()
	c.Shared = true
	return c
}

func TestRecordOfLaterVersion(t *testing.T) {
	engine := mem.New(mem.Options{})
	for _, value := range []string{"", "{}", `{"version":2}`, `{"version":1,"current":"k","keys":{}}`} {
		err := engine.Update(t.Context(), func(tx store.Tx) error { return tx.Put(sealed.Collection, "keys", []byte(value)) })
		if err != nil {
			t.Fatal(err)
		}
		for _, ring := range []*crypt.Keyring{nil, keys(t, "k")} {
			if _, _, err := sealed.Open(t.Context(), engine, sealed.Options{Ring: ring}); !errors.Is(err, store.ErrUnreadable) {
				t.Errorf("%q: %v", value, err)
			}
		}
		if err := sealed.CheckRecord("keys", []byte(value)); !errors.Is(err, store.ErrUnreadable) {
			t.Errorf("%q: %v", value, err)
		}
	}
}

// moving is a store that calls move once, after its next View.
type moving struct {
	store.Store
	move func()
}

func (m *moving) View(ctx context.Context, fn func(store.Tx) error) error {
	err := m.Store.View(ctx, fn)
	if move := m.move; move != nil {
		m.move = nil
		move()
	}
	return err
}

// A thing that moves to where a pass has been already is put sealed, and so is its part, of which the pass then learns nothing.
func TestPartsOfThingsThatMoveAreSealed(t *testing.T) {
	engine := &moving{Store: mem.New(mem.Options{})}
	t.Cleanup(func() { _ = engine.Close() })
	for i := range 100 { // more than one transaction of a pass
		put(t, engine, fmt.Sprintf("k%02d", i), "v")
	}
	s := open(t, engine, keys(t, "k"))
	engine.move = func() {
		err := s.Update(t.Context(), func(tx store.Tx) error {
			value, err := tx.Get(things, "k99")
			return errors.Join(err, tx.Put(things, "k99", value, store.Entry{Index: "byname", SortKey: "a"}))
		})
		if err != nil {
			t.Error(err)
		}
	}
	if r, err := s.Rewrite(t.Context()); err != nil || !slices.Equal(r.Retired, []string{""}) {
		t.Errorf("%+v, %v", r, err)
	}
	has(t, s, "k99", "v")
	under(t, engine, "k99", "k", "k")
}
