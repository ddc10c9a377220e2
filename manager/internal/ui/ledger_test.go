package ui

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/feed"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// reserve makes a reservation as a gate would.
func (s *site) reserve(scope, key, token, fingerprint string) error {
	ctx := ledger.WithCaller(s.t.Context(), "192.0.2.7:5000")
	_, err := s.ledger.Reserve(ctx, &api.ReserveRequest{Scope: scope, Key: key, Token: token, Fingerprint: fingerprint}, nil)
	return err
}

func (s *site) commit(scope, key, token, body string) {
	s.t.Helper()
	result := api.Result{Status: 201, Headers: []api.Header{{Name: "content-type", Value: "text/html"}}, Body: []byte(body)}
	if err := s.ledger.Commit(s.t.Context(), ledger.NewFinish(&api.FinishRequest{Scope: scope, Key: key, Token: token, Result: result})); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) unknown(scope, key string) {
	s.t.Helper()
	if err := s.reserve(scope, key, "t", "f"); err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.ledger.Unknown(s.t.Context(), &api.ReserveRequest{Scope: scope, Key: key, Token: "t"}); err != nil {
		s.t.Fatal(err)
	}
}

func (a answer) must(t *testing.T, status int, texts ...string) {
	t.Helper()
	if a.status != status {
		t.Errorf("status %d, want %d: %s", a.status, status, a.body)
	}
	for _, text := range texts {
		if !strings.Contains(a.body, text) {
			t.Errorf("the page lacks %q: %s", text, a.body)
		}
	}
}

func (a answer) mustNot(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(a.body, text) {
			t.Errorf("the page has %q", text)
		}
	}
}

// follow opens the page that a form below /ui/ledger/ leads to.
func (s *site) follow(a answer) answer {
	s.t.Helper()
	to, ok := strings.CutPrefix(a.header.Get("Location"), "./../")
	if !ok {
		s.t.Fatalf("location %q", a.header.Get("Location"))
	}
	return s.get("/ui/" + to)
}

// TestEntryPageTellsItsLife: what the record says, what the journal says, and nothing of the answer or the token.
func TestEntryPageTellsItsLife(t *testing.T) {
	s := newSite(t, siteOptions{})
	if err := s.reserve("shop", "order-1", "secret-token", "print-1"); err != nil {
		t.Fatal(err)
	}
	s.commit("shop", "order-1", "secret-token", "private body")
	for range 3 {
		if err := s.reserve("shop", "order-1", "t2", ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.reserve("shop", "order-1", "t3", "print-2"); !errors.Is(err, ledger.ErrFingerprintMismatch) {
		t.Fatal(err)
	}
	a := s.get("/ui/ledger?key=order-1&scope=shop")
	a.must(t, 200, "committed", "192.0.2.7", "Reserved: the work began", "Committed: the work ran", "print-1", "print-2", "status 201, 12 bytes",
		"Replays: attempts that got the recorded answer</th><td class=\"n\">3<")
	a.mustNot(t, "private body", "secret-token", "192.0.2.7:5000")
	for _, missing := range []struct{ query, text string }{{"key=never", "has no entry of this key in any scope"}, {"key=never&scope=shop", "has no entry of this key in the scope"}} {
		a = s.get("/ui/ledger?" + missing.query)
		a.must(t, 200, missing.text, "It does not remember the key (any more).")
		a.mustNot(t, "never used", "Choose one")
	}
	s.get("/ui/ledger?key="+strings.Repeat("k", 256)).must(t, 400, "No such key")
	s.get("/ui/ledger?key=a%00b").must(t, 400, "No such key")
}

// TestKeyWithoutScope: the page of a key leads to the only scope in which the key is known, or names the scopes.
func TestKeyWithoutScope(t *testing.T) {
	s := newSite(t, siteOptions{})
	s.commit("shop&co", "order 1", "t", "answer")
	for _, path := range []string{"/ui/ledger?key=order+1", "/ui/ledger?key=order+1&scope="} {
		a := s.get(path)
		if to := a.header.Get("Location"); a.status != 303 || to != "./ledger?key=order+1&scope=shop%26co" {
			t.Errorf("%s: status %d, to %q", path, a.status, to)
		}
	}
	s.commit("bank", "order 1", "t", "answer")
	a := s.get("/ui/ledger?key=order+1")
	a.must(t, 200, "has no entry of this key without a scope", "The key is in 2 scopes. Choose one:", "key=order&#43;1&amp;scope=bank", "key=order&#43;1&amp;scope=shop%26co")
	a.mustNot(t, "does not remember", "lately seen")

	s.commit("shop", "order-2", "t", "answer")
	s.commit("", "order-2", "t", "answer")
	s.get("/ui/ledger?key=order-2").must(t, 200, "committed", "key=order-2&amp;scope=shop")
	if _, err := s.ledger.Delete(t.Context(), "", "order-2"); err != nil {
		t.Fatal(err)
	}
	s.get("/ui/ledger?key=order-2").must(t, 200, "Deleted by an administrator", "key=order-2&amp;scope=shop")
}

// TestScopesAreFoundInTheLedger: the page knows the scopes of keys that this manager has not seen since its start. It looks
// through a bounded number of entries, shows a bounded number of scopes, and continues from there.
func TestScopesAreFoundInTheLedger(t *testing.T) {
	s := newSite(t, siteOptions{unwatched: true})
	s.commit("shop", "order-1", "t", "answer")
	if a := s.get("/ui/ledger?key=order-1"); a.status != 303 || a.header.Get("Location") != "./ledger?key=order-1&scope=shop" {
		t.Errorf("one scope: status %d, to %q", a.status, a.header.Get("Location"))
	}
	s.commit("bank", "order-1", "t", "answer")
	s.get("/ui/ledger?key=order-1").must(t, 200, "The key is in 2 scopes. Choose one:", "scope=bank", "scope=shop")

	for i := range scopesShown + 1 {
		s.commit(fmt.Sprintf("s%02d", i), "order-2", "t", "answer")
	}
	a := s.get("/ui/ledger?key=order-2")
	a.must(t, 200, "Search on")
	if n := strings.Count(a.body, "key=order-2&amp;scope=s"); n != scopesShown {
		t.Errorf("%d scopes", n)
	}
	_, link, _ := strings.Cut(a.body, `href="./ledger?cursor=`)
	link, _, _ = strings.Cut(link, `"`)
	a = s.get("/ui/ledger?cursor=" + strings.ReplaceAll(link, "&amp;", "&"))
	a.must(t, 200, "The key is in 1 more scope:")
	a.mustNot(t, "Search on")
	s.get("/ui/ledger?key=order-2&cursor=nonsense").must(t, 400, "Page not understood")
}

// TestAnswersAreShownOnlyWhenAskedFor: by a form that is written to the audit log, escaped, and only to operators.
func TestAnswersAreShownOnlyWhenAskedFor(t *testing.T) {
	s := newSite(t, siteOptions{tokens: true})
	s.commit("", "k", "t", "<script>alert(1)</script>")
	s.commit("", "binary", "t", "\xff\xfe")
	s.commit("", "long", "t", strings.Repeat("é", maxShown))
	s.login(operatorToken)
	form := func(key string) url.Values { return url.Values{"key": {key}} }
	if a := s.post("/ui/ledger/answer", form("k")); a.status != 403 {
		t.Errorf("without CSRF token: status %d", a.status)
	}
	if strings.Contains(s.audit.String(), "recorded answer") {
		t.Errorf("audit: %s", s.audit)
	}
	a := s.submit("/ui/ledger?key=k", "/ui/ledger/answer", form("k"))
	a.must(t, 200, "&lt;script&gt;alert(1)&lt;/script&gt;", "text/html")
	a.mustNot(t, "<script>alert")
	if log := s.audit.String(); !strings.Contains(log, "recorded answer shown") || !strings.Contains(log, "key=k") || strings.Contains(log, "alert") {
		t.Errorf("audit: %s", log)
	}
	s.submit("/ui/", "/ui/ledger/answer", form("binary")).must(t, 200, "no text")
	long := s.submit("/ui/", "/ui/ledger/answer", form("long"))
	long.must(t, 200, "Only the beginning of 128.0 KiB")
	long.mustNot(t, "\ufffd", "no text")
	s.submit("/ui/", "/ui/ledger/answer", form("none")).must(t, 404, "No such entry")
	if err := s.reserve("", "pending", "t", ""); err != nil {
		t.Fatal(err)
	}
	s.submit("/ui/", "/ui/ledger/answer", form("pending")).must(t, 409, "no recorded answer")
}

// TestUnknownOutcomesAreSettled: every choice, what is refused, and what the audit log and the entry's life say.
func TestUnknownOutcomesAreSettled(t *testing.T) {
	s := newSite(t, siteOptions{tokens: true})
	s.login(operatorToken)
	for i, c := range []struct {
		form   url.Values
		status int
		text   string
	}{
		{url.Values{"as": {"committed"}, "status": {"201"}, "reason": {"seen in the bank's books"}}, 303, ""},
		{url.Values{"as": {"rejected"}, "status": {"402"}, "reason": {"r"}}, 303, ""},
		{url.Values{"as": {"released"}, "sure": {"yes"}, "reason": {"r"}}, 303, ""},
		{url.Values{"as": {"released"}, "reason": {"r"}}, 400, "Tick the box"},
		{url.Values{"as": {"committed"}, "status": {"201"}}, 400, "Say why"},
		{url.Values{"as": {"committed"}, "status": {"201"}, "reason": {strings.Repeat("r", maxReason+1)}}, 400, "Say why"},
		{url.Values{"as": {"committed"}, "status": {"199"}, "reason": {"r"}}, 400, "200 to 599"},
		{url.Values{"as": {"committed"}, "status": {"200x"}, "reason": {"r"}}, 400, "200 to 599"},
		{url.Values{"as": {"committed"}, "reason": {"r"}}, 400, "200 to 599"},
		{url.Values{"as": {"pending"}, "reason": {"r"}}, 400, "Choose what happened"},
		{url.Values{"reason": {"r"}}, 400, "Choose what happened"},
	} {
		key := fmt.Sprint("k", i)
		s.unknown("s", key)
		page := "/ui/ledger?key=" + key + "&scope=s"
		s.get(page).must(t, 200, "Settle it", "Reported: the outcome is unknown")
		c.form.Set("key", key)
		c.form.Set("scope", "s")
		if a := s.post("/ui/ledger/resolve", c.form); a.status != 403 {
			t.Fatalf("without CSRF token: status %d", a.status)
		}
		a := s.submit(page, "/ui/ledger/resolve", c.form)
		a.must(t, c.status, c.text)
		after, err := s.ledger.Get(t.Context(), "s", key)
		want := api.StateUnknown
		if c.status == 303 {
			if want, _ = api.ParseState(c.form.Get("as")); want == api.StateReleased {
				want = api.StateNone
			}
			s.follow(a).must(t, 200, "Settled: ", "Settled by an operator", "web page, token 1")
			if !strings.Contains(s.audit.String(), "key="+key) || !strings.Contains(s.audit.String(), "entry resolved as "+c.form.Get("as")+" by an operator") {
				t.Errorf("audit: %s", s.audit)
			}
		}
		if after.State != want || (want == api.StateNone) != errors.Is(err, ledger.ErrNotFound) {
			t.Errorf("%v: the entry is %v, want %v", c.form, after.State, want)
		}
	}
	s.submit("/ui/", "/ui/ledger/resolve", url.Values{"key": {"k0"}, "scope": {"s"}, "as": {"released"}, "sure": {"yes"}, "reason": {"r"}}).
		must(t, 409, "The entry is committed by now")
	if !strings.Contains(s.audit.String(), "seen in the bank") {
		t.Errorf("audit: %s", s.audit)
	}
}

// TestOnlyAdministratorsDelete: operators do not see the form, and cannot use it.
func TestOnlyAdministratorsDelete(t *testing.T) {
	s := newSite(t, siteOptions{tokens: true})
	s.commit("", "k", "t", "x")
	form := func(sure string) url.Values { return url.Values{"key": {"k"}, "reason": {"a test"}, "sure": {sure}} }
	s.login(operatorToken)
	s.get("/ui/ledger?key=k").mustNot(t, "ledger/delete")
	s.submit("/ui/", "/ui/ledger/delete", form("yes")).must(t, 403)
	s.client = s.newClient()
	s.login(adminToken)
	s.get("/ui/ledger?key=k").must(t, 200, "ledger/delete")
	s.submit("/ui/", "/ui/ledger/delete", form("")).must(t, 400, "Tick the box")
	a := s.submit("/ui/", "/ui/ledger/delete", form("yes"))
	a.must(t, 303)
	s.follow(a).must(t, 200, "Deleted: ", "Deleted by an administrator")
	if !strings.Contains(s.audit.String(), "entry deleted by an administrator") || !strings.Contains(s.audit.String(), "a test") {
		t.Errorf("audit: %s", s.audit)
	}
}

// TestListsAreBounded: a page has at most 100 rows and leads to the next one, and every entry is on one of them.
func TestListsAreBounded(t *testing.T) {
	s := newSite(t, siteOptions{})
	for i := range 250 {
		s.unknown("", fmt.Sprintf("u%03d", i))
		if err := s.reserve("", fmt.Sprintf("p%03d", i), "t", ""); err != nil {
			t.Fatal(err)
		}
		_ = s.ledger.Release(t.Context(), &api.ReleaseRequest{Key: fmt.Sprintf("p%03d", i), Token: "late"})
	}
	for _, list := range []string{"list=unknown", "list=pending&order=expiry"} {
		seen, pages := map[string]bool{}, 0
		for next := "ledger?" + list; next != ""; pages++ {
			a := s.get("/ui/" + next)
			a.must(t, 200)
			rows := strings.Split(a.body, `<th scope="row"><a href="`)[1:]
			if len(rows) > rowLimit {
				t.Errorf("%d rows", len(rows))
			}
			for _, row := range rows {
				seen[row[:strings.IndexByte(row, '"')]] = true
			}
			next = ""
			if _, link, found := strings.Cut(a.body, `rel="next" href="./`); found {
				next = strings.ReplaceAll(link[:strings.IndexByte(link, '"')], "&amp;", "&")
			}
			if pages > 5 {
				t.Fatal("the pages do not end")
			}
		}
		if len(seen) != 250 || pages != 3 {
			t.Errorf("%s: %d entries on %d pages", list, len(seen), pages)
		}
	}
	a := s.get("/ui/ledger?list=pending")
	a.must(t, 200, "The oldest first", "Show all")
	s.get("/ui/ledger?list=fenced").must(t, 200, "100 of 250", "release")
	s.get("/ui/ledger?list=unknown&cursor=nonsense").must(t, 400, "Page not understood")
	s.get("/ui/ledger?list=other").must(t, 404)
	for _, list := range ledgerLists {
		s.get("/ui/ledger?list="+list.Name).must(t, 200)
	}
}

// TestKeysAreEscaped: what callers choose is never taken for HTML, wherever it is shown.
func TestKeysAreEscaped(t *testing.T) {
	s := newSite(t, siteOptions{})
	const evil = `"><script>alert(1)</script>`
	for _, scope := range []string{evil, evil + "2"} { // the page of the key alone names both
		if err := s.reserve(scope, evil, "t", evil); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.reserve(evil, evil, "u", evil+"2"); !errors.Is(err, ledger.ErrFingerprintMismatch) {
		t.Fatal(err)
	}
	if err := s.ledger.Release(t.Context(), &api.ReleaseRequest{Key: evil, Scope: evil, Token: "u"}); !errors.Is(err, ledger.ErrFenced) {
		t.Fatal(err)
	}
	for _, path := range []string{"?key=" + url.QueryEscape(evil) + "&scope=" + url.QueryEscape(evil), "?key=" + url.QueryEscape(evil), "?list=pending", "?list=mismatch", "?list=fenced"} {
		a := s.get("/ui/ledger" + path)
		a.must(t, 200, "&lt;script&gt;")
		a.mustNot(t, "<script>alert")
	}
}

// TestListsShortenLongKeys: a list shows the beginning and the end of a long key, where keys differ, and links to all of it.
func TestListsShortenLongKeys(t *testing.T) {
	s := newSite(t, siteOptions{})
	for _, n := range []string{"1", "2"} {
		key := "begin" + strings.Repeat("-", 249) + n
		if err := s.reserve("", key, "t", "f"); err != nil {
			t.Fatal(err)
		}
		short := "begin" + strings.Repeat("-", 42) + "…" + strings.Repeat("-", 23) + n
		s.get("/ui/ledger?list=pending").must(t, 200, ">"+short+"<", `title="`+key+`"`, "ledger?key="+key)
	}
}

// TestConflictsAreListed: a manager with an origin shows which keys ran in two data centres. Others have no such list.
func TestConflictsAreListed(t *testing.T) {
	const evil = `"><script>alert(1)</script>`
	if a := newSite(t, siteOptions{}).get("/ui/ledger?list=conflict"); a.status != 404 {
		t.Errorf("without an origin: status %d", a.status)
	}
	s := newSite(t, siteOptions{ledger: ledger.Options{Origin: "dc1"}, change: func(o *Options) { o.Origin = "dc1" }})
	s.get("/ui/ledger?list=conflict").must(t, 200, "No key has outcomes of two data centres", `aria-current="page">Conflicts`)
	if err := s.reserve(evil, "k1", "t", "f"); err != nil {
		t.Fatal(err)
	}
	s.commit(evil, "k1", "t", "first")
	other := api.Result{Status: 202, Body: []byte("second")}
	change := ledger.FeedChange{Origin: "dc2", Sequence: 1, Scope: evil, Key: "k1", Token: "u", Fingerprint: "f", State: api.StateCommitted,
		HLC: 1, ExpiresIn: time.Hour, Result: other.AppendRaw(nil)}
	if _, err := feed.New(s.store, s.ledger, feed.Options{}).Import(t.Context(), []ledger.FeedChange{change}, nil); err != nil {
		t.Fatal(err)
	}
	a := s.get("/ui/ledger?list=conflict")
	a.must(t, 200, "<td><b>dc2</b> <span class=\"state committed\">committed</span> with status 202</td><td><div><b>dc1</b>", "with status 201</div>", ">k1<")
	a.mustNot(t, "<script>alert")
	// The winner may have run it again itself, because it had forgotten that it did.
	again := api.Result{Status: 203}
	change.Token, change.HLC, change.Result = "v", 2, again.AppendRaw(nil)
	if _, err := feed.New(s.store, s.ledger, feed.Options{}).Import(t.Context(), []ledger.FeedChange{change}, nil); err != nil {
		t.Fatal(err)
	}
	s.get("/ui/ledger?list=conflict").must(t, 200, "<td><b>dc2</b> <span class=\"state committed\">committed</span> with status 202</td>", "with status 201</div>", "with status 203</div>")
	s.get("/ui/ledger?list=conflict&cursor=x").must(t, 400, "damaged")
}

// TestWholeLedger: capacity, chart and table, and the live part has the same.
func TestWholeLedger(t *testing.T) {
	s := newSite(t, siteOptions{})
	s.get("/ui/ledger").must(t, 200, "The chart begins with", "Capacity", "per second, if each is remembered for")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { s.ledger.Run(ctx, nil) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	for len(s.ledger.Funnel()) == 0 {
		time.Sleep(time.Millisecond)
	}
	s.commit("", "k", "t", "x")
	for range 3 {
		if err := s.reserve("", "k", "u", ""); err != nil {
			t.Fatal(err)
		}
	}
	s.get("/ui/ledger").must(t, 200, "<svg", "Hit</dt><dd>3 <small>", "</title><rect", `role="img"`, "<details><summary>The last hour as a table", `<th scope="col" class="n">Hit</th>`)
}

// TestChartKeepsSmallCounts: a single refusal beside a million hits has a bar.
func TestChartKeepsSmallCounts(t *testing.T) {
	c := drawChart([]ledger.Minute{{}, {Hit: 1_000_000, Refused: 1}})
	if len(c.Bars) != 1 || len(c.Bars[0].Pieces) != 2 || c.Bars[0].Pieces[1].Height != "1.0" || c.Top != 2_000_000 || c.Bars[0].X != 60*chartStep {
		t.Errorf("%+v", c)
	}
	for n, want := range map[uint64]uint64{0: 2, 1: 2, 9: 9, 10: 10, 11: 20, 99: 100, 100: 100, 101: 200, 1234567: 2000000} {
		if got := roundUp(n); got != want {
			t.Errorf("roundUp(%d) is %d, want %d", n, got, want)
		}
	}
}
