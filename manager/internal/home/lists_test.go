package home_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/home"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// TestHomesMustAgree: a home refuses keys that are not its own, and data centres with different lists run no key.
func TestHomesMustAgree(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, home.Options{})
	there := w.dcs["dc2"]
	k, other := w.key("dc2", "k"), w.key("dc1", "k")
	forwarded := func(query, key string) string {
		status, word := there.call("home/reserve?"+query, fmt.Sprintf(bare, key, "a"))
		return fmt.Sprint(status, " ", word)
	}
	const agreed = "from=dc1&home=dc2&of=dc1,dc2"
	for _, c := range []struct{ query, want string }{
		{agreed, "201 reserved"},
		{"from=dc1&home=dc3&of=dc1,dc2", "421 wrong-home"},
		{"from=dc1&home=dc2&of=dc1,dc2,dc3", "421 wrong-home"},
		{"", "421 wrong-home"},
	} {
		if got := forwarded(c.query, k); got != c.want {
			t.Errorf("%s: %s, want %s", c.query, got, c.want)
		}
	}
	if got := forwarded("from=dc1&home=dc2&of=dc1,dc2", other); got != "421 wrong-home" {
		t.Error("a key of another home:", got)
	}
	if status, word := there.call("home/lookup?from=dc1&home=dc2&of=dc1,dc2", fmt.Sprintf(bare, k, "a")); status != 400 {
		t.Error("an unknown call:", status, word)
	}
	// It has met a list with dc3, so it is the home of no new key.
	there.want("421 wrong-home", "reserve", reserve, w.key("dc2", "new"), "a")
	if got := forwarded(agreed, w.key("dc2", "new")); got != "421 wrong-home" {
		t.Error("a new key of a data centre that agrees:", got)
	}
	there.want("201 reserved", "reserve", bare, w.key("dc2", "local"), "a")
	if status, _ := there.call("home/commit?"+agreed, fmt.Sprintf(commit, k, "a")); status != 200 {
		t.Error("the end of what began before:", status)
	}

	// Calls for changes say the list as well.
	w = newWorld(t, 2, home.Options{})
	here := w.dcs["dc1"]
	for said, want := range map[string]string{"dc2=dc1,dc2": "201 reserved", "": "201 reserved"} {
		a := here.Site.Do("GET", "/v1/ledger/changes", "", "", api.HeaderDataCentres, said)
		if got := a.Header.Get(api.HeaderDataCentres); got != "dc1=dc1,dc2" {
			t.Errorf("dc1 says %q of its list", got)
		}
		here.want(want, "reserve", reserve, w.key("dc1", "after"+said), "a")
	}
	here.Site.Do("GET", "/v1/ledger/changes", "", "", api.HeaderDataCentres, "dc3=dc1,dc2,dc3")
	here.want("421 wrong-home", "reserve", reserve, w.key("dc1", "new"), "a")

	// dc3 is there, and the others do not know.
	w = newWorld(t, 2, home.Options{})
	third := w.add("dc3", []string{"dc1", "dc2", "dc3"}, home.Options{})
	for i := 0; i < 20; i++ {
		status, word := third.call("reserve", fmt.Sprintf(reserve, fmt.Sprint("key-", i), "a"))
		if home := third.names[api.Home(third.names, "", fmt.Sprint("key-", i))]; home != "dc3" && (status != 421 || word != "wrong-home") {
			t.Errorf("home %s: %d %s", home, status, word)
		}
	}
}

// TestListsThatNobodyTold: data centres with different lists, which have never reached each other, do not both run a key of
// which both compute that they are the home. What is recorded is answered meanwhile.
func TestListsThatNobodyTold(t *testing.T) {
	t.Parallel()
	w := &world{t: t, dcs: make(map[string]*dc)}
	w.set(func(_, _ string) fault { return cut })
	two, three := []string{"dc1", "dc2"}, []string{"dc1", "dc2", "dc3"}
	first, third := w.add("dc1", two, home.Options{}), w.add("dc3", three, home.Options{})
	key := ""
	for i := 0; key == ""; i++ {
		if k := fmt.Sprint("k-", i); two[api.Home(two, "", k)] == "dc1" && three[api.Home(three, "", k)] == "dc3" {
			key = k
		}
	}
	third.want("503 home-unavailable", "reserve", reserve, key, "a")
	third.want("503 home-unavailable", "home/reserve?from=dc2&home=dc3&of=dc1,dc2,dc3", bare, key, "a")
	first.homes.Meet("dc2=dc1,dc2")
	first.want("201 reserved", "reserve", reserve, key, "b")
	first.want("200 committed", "commit", commit, key, "b")
	third.homes.Meet("dc2=dc1,dc2,dc3")
	third.want("503 home-unavailable", "reserve", reserve, key, "a")
	third.homes.Meet("dc1=dc1,dc2,dc3")
	third.want("201 reserved", "reserve", reserve, w.homed(third, "other"), "a")

	first.homes.Meet("dc2=dc1,dc2,dc3")
	first.want("200 committed", "reserve", reserve, key, "c")
	first.want("421 wrong-home", "reserve", reserve, w.homed(first, "new"), "c")
	a := first.Site.Do("GET", "/v1/peers", "", "")
	if got := gjson.Get(a.Body, "refuses").String(); !strings.Contains(got, "all must have the same list") || gjson.Get(a.Body, "data_centres").Raw != `["dc1","dc2"]` {
		t.Errorf("peers: %s", a.Body)
	}
	a = third.Site.Do("GET", "/v1/peers", "", "")
	if gjson.Get(a.Body, "refuses").Exists() {
		t.Errorf("peers: %s", a.Body)
	}
}

// TestNotedHomeIsAsked: a list of data centres that changes under an attempt changes the key's home. What is said of the
// attempt goes where its reservation was noted, and not to a home that never gave it.
func TestNotedHomeIsAsked(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"renew", "unknown", "release"} {
		w := newWorld(t, 3, home.Options{})
		here := w.dcs["dc1"]
		k := w.key("dc2", op)
		// The attempt is noted at dc3, the home by an earlier list.
		if err := here.ledger.Follow(t.Context(), &api.ReserveRequest{Key: k, Token: "a"}, "dc3", ledger.Seen{}); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var asked []string
		w.set(func(_, to string) fault {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, to)
			return arrives
		})
		here.want("421 wrong-home", op, reserve, k, "a") // dc3 has the new list
		if fmt.Sprint(asked) != "[dc3]" {
			t.Errorf("%s asks %v", op, asked)
		}
		if _, err := w.dcs["dc2"].ledger.Get(t.Context(), "", k); !errors.Is(err, ledger.ErrNotFound) {
			t.Errorf("%s: the new home has an entry, %v", op, err)
		}
	}
}

// restored is the quarantine of a ledger that was restored.
type restored struct{}

func (restored) Left(store.Tx) (time.Duration, error) { return time.Hour, nil }
func (restored) Record() (store.ID, bool)             { return store.ID{}, false }

// TestRestoredNoteIsNotMissed: a data centre was restored to a time before it noted an attempt. Its quarantine must not keep
// from the home what is said of the attempt.
func TestRestoredNoteIsNotMissed(t *testing.T) {
	t.Parallel()
	for op, want := range map[string]string{"renew": "200 reserved", "unknown": "200 unknown", "release": "200 released", "commit": "200 committed"} {
		w := newWorld(t, 2, home.Options{})
		k := w.key("dc2", op)
		w.dcs["dc1"].want("201 reserved", "reserve", reserve, k, "a")
		w.quarantine = restored{}
		here := w.add("dc1", w.names, home.Options{})
		body := reserve
		if op == "commit" {
			body = `{"key":%q,"token":%q,"result":{"status":201,"body":"aGk="},"durability":"global"}`
		}
		here.want(want, op, body, k, "a")
		e, err := w.dcs["dc2"].ledger.Get(t.Context(), "", k)
		if op == "unknown" && e.State != api.StateUnknown || op == "commit" && e.State != api.StateCommitted || op == "release" && !errors.Is(err, ledger.ErrNotFound) {
			t.Errorf("%s: the home has %v, %v", op, e.State, err)
		}
	}
}

// TestSecondCallIsRefused: the home has given the reservation, is asked again because an outcome arrived meanwhile, and
// refuses that call. The caller learns that it may have the reservation, and gives it back.
func TestSecondCallIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, home.Options{})
	here, there := w.dcs["dc1"], w.dcs["dc2"]
	k := w.key("dc2", "k")
	w.whileAnswered(func() {
		raw := (&api.Result{Status: 201}).AppendRaw(nil)
		change := ledger.FeedChange{Origin: "dc2", Key: k, Token: "b", State: api.StateCommitted, HLC: 1, ExpiresIn: time.Hour, Result: raw}
		if _, err := here.feed.Import(t.Context(), []ledger.FeedChange{change}, nil); err != nil {
			t.Error(err)
		}
		there.homes.Meet("dc1=dc1,dc2,dc3")
	})
	here.want("503 home-unanswered", "reserve", reserve, k, "a")
	if e, err := there.ledger.Get(t.Context(), "", k); err != nil || e.State != api.StatePending {
		t.Fatalf("%+v, %v", e, err)
	}
	here.want("200 released", "release", reserve, k, "a")
	if e, err := there.ledger.Get(t.Context(), "", k); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("%+v, %v", e, err)
	}
}

// TestOldHomeEndsWhatItBegan: after a change of the list, the old home takes calls about the reservations that it gave, from
// its own callers and from others. It takes no other call about keys whose home is elsewhere now.
func TestOldHomeEndsWhatItBegan(t *testing.T) {
	t.Parallel()
	const (
		global = `{"key":%q,"token":%q,"durability":"global"}`
		result = `{"key":%q,"token":%q,"durability":"global","result":{"status":201,"body":"aGk="}}`
	)
	for op, c := range map[string]struct{ body, want string }{
		"renew": {global, "200 reserved"}, "unknown": {global, "200 unknown"}, "release": {global, "200 released"},
		"commit": {result, "200 committed"}, "reject": {result, "200 rejected"},
	} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 3, home.Options{})
			here, old, now := w.dcs["dc1"], w.dcs["dc3"], w.dcs["dc2"]
			begin := func(name string) (k string) {
				k = w.key("dc2", name)
				if _, err := old.ledger.Reserve(t.Context(), &api.ReserveRequest{Key: k, Token: "a"}, nil); err != nil {
					t.Fatal(err)
				}
				return k
			}
			follow := func(k string) {
				if err := here.ledger.Follow(t.Context(), &api.ReserveRequest{Key: k, Token: "a"}, "dc3", ledger.Seen{}); err != nil {
					t.Fatal(err)
				}
			}
			clean := func(k string) {
				t.Helper()
				if _, err := now.ledger.Get(t.Context(), "", k); !errors.Is(err, ledger.ErrNotFound) {
					t.Errorf("the new home has an entry: %v", err)
				}
			}
			k := begin("noted")
			follow(k)
			here.want(c.want, op, c.body, k, "a")
			clean(k)

			k = begin("own")
			old.want(c.want, op, c.body, k, "a")
			clean(k)

			k = begin("another-attempt")
			if err := here.ledger.Follow(t.Context(), &api.ReserveRequest{Key: k, Token: "b"}, "dc3", ledger.Seen{}); err != nil {
				t.Fatal(err)
			}
			here.want("409 fenced", op, c.body, k, "b")

			// The lists differ while the new one is rolled out.
			k = begin("rolling-out")
			status, word := old.call("home/"+op+"?from=dc1&home=dc3&of=dc1,dc3", fmt.Sprintf(strings.Replace(c.body, `"global"`, `"local"`, 1), k, "a"))
			if got := fmt.Sprint(status, " ", word); got != c.want {
				t.Errorf("while lists differ: %s, want %s", got, c.want)
			}
			old.want("421 wrong-home", "reserve", reserve, w.key("dc3", "new"), "a") // it has met the other list

			// It has nothing of the key, or only an outcome of another data centre.
			k = w.key("dc2", "nothing")
			follow(k)
			here.want("421 wrong-home", op, c.body, k, "a")
			if _, err := old.ledger.Get(t.Context(), "", k); !errors.Is(err, ledger.ErrNotFound) {
				t.Errorf("the old home has an entry: %v", err)
			}
			k = w.key("dc2", "imported")
			follow(k)
			change := ledger.FeedChange{Origin: "dc2", Key: k, Token: "b", State: api.StateCommitted, HLC: 1, ExpiresIn: time.Hour, Result: (&api.Result{Status: 201}).AppendRaw(nil)}
			if _, err := old.feed.Import(t.Context(), []ledger.FeedChange{change}, nil); err != nil {
				t.Fatal(err)
			}
			here.want("421 wrong-home", op, c.body, k, "a")
			if list, _, err := views.Conflicts(t.Context(), old.ledger, 10, ""); err != nil || len(list) != 0 {
				t.Errorf("conflicts: %v, %v", list, err)
			}

			// A reserve, and a call for another data centre.
			k = begin("reserve")
			for _, query := range []string{"home/reserve?from=dc1&home=dc3&of=dc1,dc2,dc3", "home/" + op + "?from=dc1&home=dc2&of=dc1,dc2,dc3"} {
				body := bare
				if !strings.HasPrefix(query, "home/reserve") {
					body = strings.Replace(c.body, `"global"`, `"local"`, 1)
				}
				if status, word := old.call(query, fmt.Sprintf(body, k, "a")); status != 421 || word != "wrong-home" {
					t.Errorf("%s: %d %s", query, status, word)
				}
			}
		})
	}
}

// TestRefusalSaysWhen: a home that takes no new keys says why and when to try again, and still replays what it has.
func TestRefusalSaysWhen(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, home.Options{})
	here, there := w.dcs["dc1"], w.dcs["dc2"]
	k := w.key("dc2", "recorded")
	there.want("201 reserved", "reserve", reserve, k, "a")
	there.want("200 committed", "commit", commit, k, "a")
	there.homes.Meet("dc3=dc1,dc2,dc3")
	for _, d := range []*dc{here, there} {
		a := d.JSON("POST", "/v1/ledger/reserve", fmt.Sprintf(reserve, w.key("dc2", "new"), "a"))
		if seconds, err := strconv.Atoi(a.Header.Get("retry-after")); err != nil || seconds < 1 || seconds > 60 {
			t.Errorf("%s: Retry-After %q", d.name, a.Header.Get("retry-after"))
		}
		detail := gjson.Get(a.Body, "detail").String()
		for _, part := range []string{"dc1,dc2,dc3", "dc2 are dc1,dc2", "nothing was changed"} {
			if !strings.Contains(detail, part) {
				t.Errorf("%s: %s lacks %q", d.name, a.Body, part)
			}
		}
		d.want("200 committed", "reserve", reserve, k, "b")
	}
}
