package browser

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

//go:embed testdata/axe.min.js
var axe string

const (
	operatorToken = "operator-token-of-the-tests"
	adminToken    = "admin-token-of-the-tests"
	peerToken     = "peer-token-of-the-tests"
	// patience bounds one step in the browser. It is never reached unless something is wrong.
	patience = 3 * time.Minute
)

// top is the repository's root.
func top(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// tab is a page in a browser. It fails the test if the page has errors, or breaks its own content policy.
type tab struct {
	t    testing.TB
	ctx  context.Context
	base string // with /ui/
	// away: the manager is, which the browser may complain of.
	away atomic.Bool
}

func newTab(t testing.TB, base string) *tab {
	t.Helper()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("%v; make test-deep installs it", err)
	}
	profile, err := os.MkdirTemp("", "browser-")
	if err != nil {
		t.Fatal(err)
	}
	alloc, cancel := chromedp.NewExecAllocator(context.Background(), append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(chromium), chromedp.NoSandbox, chromedp.UserDataDir(profile), chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.WSURLReadTimeout(patience))...)
	ctx, cancelTab := chromedp.NewContext(alloc)
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // the browser ends by itself, and its children before it
		cancelTab()
		cancel()
		// Without that they write into the profile for a moment after their parent has ended.
		deadline := time.Now().Add(patience)
		for err := os.RemoveAll(profile); err != nil; err = os.RemoveAll(profile) {
			if time.Now().After(deadline) {
				t.Errorf("the browser still uses its profile: %v", err)
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	var mu sync.Mutex
	var troubles []string
	b := &tab{t: t, ctx: ctx, base: base}
	chromedp.ListenTarget(ctx, func(event any) {
		mu.Lock()
		defer mu.Unlock()
		switch e := event.(type) {
		case *cdplog.EventEntryAdded:
			// The first page is the login with status 401, and one page is not there.
			if e.Entry.Level == cdplog.LevelError && !b.away.Load() && !strings.Contains(e.Entry.Text, "status of 40") {
				troubles = append(troubles, e.Entry.Text+" "+e.Entry.URL)
			}
		case *runtime.EventExceptionThrown:
			troubles = append(troubles, e.ExceptionDetails.Error())
		}
	})
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		for _, s := range troubles {
			t.Errorf("the browser says: %s", s)
		}
	})
	b.do(chromedp.EmulateViewport(1280, 900))
	return b
}

func (b *tab) do(actions ...chromedp.Action) {
	b.t.Helper()
	if err := chromedp.Run(b.ctx, chromedp.ActionFunc(func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return chromedp.Tasks(actions).Do(ctx)
	})); err != nil {
		var at, text string
		_ = chromedp.Run(b.ctx, chromedp.Location(&at), chromedp.Text("body", &text, chromedp.ByQuery))
		b.t.Fatalf("%v, at %s: %s", err, at, text)
	}
}

func (b *tab) open(path string) {
	b.t.Helper()
	b.do(chromedp.Navigate(b.base+path), chromedp.WaitReady("main"))
}

func (b *tab) login() {
	b.t.Helper()
	b.open("login")
	b.do(chromedp.SendKeys(`input[name=token]`, operatorToken+"\r"), chromedp.WaitVisible(`//h1[text()="Overview"]`))
}

// click clicks a button or link with this text, and waits for its page to say want.
func (b *tab) click(text, want string) {
	b.t.Helper()
	b.do(chromedp.Click(fmt.Sprintf(`//main//*[self::button or self::a][normalize-space()=%q]`, text)),
		chromedp.WaitVisible(fmt.Sprintf(`//main//*[contains(normalize-space(), %q)]`, want)))
}

// scheme is how a page is looked at. Rules are those of axe-core that can find something new in it; none are all.
type scheme struct {
	name, colors string
	width        int64
	rules        []string
}

var schemes = []scheme{{"light", "light", 1280, nil}, {"dark", "dark", 1280, []string{"color-contrast"}}, {"narrow", "light", 360, nil}, {"narrow-dark", "dark", 360, []string{"color-contrast"}}}

// violation is a rule of axe-core that a page breaks.
type violation struct {
	ID, Help string
	Nodes    []struct {
		HTML, FailureSummary string
	}
}

// check changes to a scheme. It returns what axe-core finds there, and whether the page is wider than the window.
func (b *tab) check(s scheme) (found []violation, wide bool) {
	b.t.Helper()
	options := map[string]any{"resultTypes": []string{"violations"}}
	if s.rules != nil {
		options["runOnly"] = s.rules
	}
	how, err := json.Marshal(options)
	if err != nil {
		b.t.Fatal(err)
	}
	var known bool
	b.do(chromedp.EmulateViewport(s.width, 900),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: s.colors}, {Name: "prefers-reduced-motion", Value: "reduce"}}),
		chromedp.Evaluate(`document.documentElement.scrollWidth > innerWidth + 1`, &wide),
		chromedp.Evaluate(`typeof axe !== "undefined"`, &known))
	if !known { // once for each page that was loaded
		b.do(chromedp.Evaluate(axe+";0", nil))
	}
	b.do(chromedp.Evaluate(`axe.run(`+string(how)+`).then((r) => r.violations)`, &found, func(p *runtime.EvaluateParams) *runtime.EvaluateParams {
		return p.WithAwaitPromise(true)
	}))
	return found, wide
}

// look takes pictures of the page as it is, and lets axe-core check each.
func (b *tab) look(name string) {
	b.t.Helper()
	dir := filepath.Join(top(b.t), "build", "screenshots")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	for _, s := range schemes {
		found, wide := b.check(s)
		if wide {
			b.t.Errorf("%s, %s: the page is wider than the window", name, s.name)
		}
		for _, v := range found {
			for _, n := range v.Nodes {
				b.t.Errorf("%s, %s: axe %s, %s: %s: %s", name, s.name, v.ID, v.Help, n.HTML, n.FailureSummary)
			}
		}
		var picture []byte
		b.do(chromedp.ActionFunc(func(ctx context.Context) (err error) {
			picture, err = page.CaptureScreenshot().WithCaptureBeyondViewport(true).Do(ctx)
			return err
		}))
		if err := os.WriteFile(filepath.Join(dir, name+"-"+s.name+".png"), picture, 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
	b.do(chromedp.EmulateViewport(1280, 900))
}

// spoil makes a page wrong in ways that the checks must see.
const spoil = `{
	const main = document.querySelector("main");
	const image = document.createElement("img");
	image.src = document.querySelector("link[rel=icon]").href;
	const pale = document.createElement("p");
	pale.textContent = "This can hardly be read.";
	pale.style.color = "#777";
	pale.style.background = "#888";
	const broad = document.createElement("div");
	broad.style.width = "3000px";
	broad.textContent = "broad";
	main.append(image, document.createElement("input"), pale, broad);
}`

// TestChecksSeeWhatIsWrong: the checks of the other tests fail for a page that is wrong.
func TestChecksSeeWhatIsWrong(t *testing.T) {
	t.Parallel()
	b := newTab(t, startManager(t).admin+"/ui/")
	b.open("login")
	b.do(chromedp.Evaluate(spoil, nil))
	for _, s := range schemes {
		found, wide := b.check(s)
		if !wide {
			t.Errorf("%s: nothing is wider than the window", s.name)
		}
		for _, id := range []string{"image-alt", "label", "color-contrast"} {
			if (s.rules == nil || slices.Contains(s.rules, id)) && !slices.ContainsFunc(found, func(v violation) bool { return v.ID == id }) {
				t.Errorf("%s: axe-core does not find %s", s.name, id)
			}
		}
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	m := startManager(t)
	s := m.seed()
	b := newTab(t, m.admin+"/ui/")
	b.open("jobs")
	b.look("login")
	b.do(chromedp.SendKeys(`input[name=token]`, "wrong-token-of-the-tests\r"), chromedp.WaitVisible(`.trouble`))
	b.do(chromedp.SendKeys(`input[name=token]`, operatorToken+"\r"), chromedp.WaitVisible(`//h1[text()="Jobs"]`))

	for _, p := range []struct{ name, path string }{
		{"overview", ""}, {"ledger", "ledger"}, {"entry", "ledger?key=payment-4205"}, {"no-entry", "ledger?key=" + url.QueryEscape("<b>\u202enobody's\"")},
		{"pending", "ledger?list=pending"}, {"mismatch", "ledger?list=mismatch"}, {"no-room", "ledger?list=full"},
		{"jobs", "jobs"}, {"function", "jobs?function=mail.send"}, {"dead", "jobs?function=mail.send&state=failed"}, {"search", "jobs?key=order-1030/confirmation"},
		{"job", "jobs/" + s.dead}, {"attempts", "jobs/" + s.tried}, {"jobs-hostile", "jobs?function=invoice.render&state=failed"},
		{"schedules", "schedules"}, {"subscriptions", "subscriptions"}, {"limits", "jobs?function=report.build"}, {"filtered", "jobs?state=failed&error_text=relay+access"},
		{"event", "jobs/" + s.sent}, {"tenant", "jobs?concurrency_key=" + url.QueryEscape(longKey)},
		{"life", "ledger?key=payment-4206&scope=" + url.QueryEscape(longScope)}, {"long", "ledger?" + url.Values{"key": {longKey}, "scope": {longScope}}.Encode()},
		{"hostile", "ledger?" + url.Values{"key": {hostileKey}, "scope": {longScope}}.Encode()}, {"refused", "ledger?cursor=damaged&list=unknown"},
		{"system", "system"}, {"missing", "jobs/none"},
	} {
		b.open(p.path)
		b.look(p.name)
	}
}

// TestEmptyPages: a manager that has done nothing yet.
func TestEmptyPages(t *testing.T) {
	t.Parallel()
	b := newTab(t, startManager(t).admin+"/ui/")
	b.login()
	for _, p := range []struct{ name, path string }{
		{"empty-overview", ""}, {"empty-ledger", "ledger"}, {"empty-jobs", "jobs"}, {"empty-dead", "jobs?state=failed"}, {"empty-schedules", "schedules"}, {"empty-subscriptions", "subscriptions"}, {"empty-unknown", "ledger?list=unknown"}, {"empty-system", "system"},
	} {
		b.open(p.path)
		b.look(p.name)
	}
}

// TestDataCentresInTheBrowser: peers with their lag, and keys that ran in two data centres.
func TestDataCentresInTheBrowser(t *testing.T) {
	t.Parallel()
	far := startManager(t, "--origin", "dc2")
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(peerToken), 0o600); err != nil {
		t.Fatal(err)
	}
	// Nobody listens at the third one's.
	near := startManager(t, "--origin", "dc1", "--peer", "dc2="+far.api, "--peer", "dc3=http://127.0.0.1:1", "--peer-token-file", token)
	near.do("DELETE", "/v1/ledger/quarantine", nil) // the third one cannot say whether it remembers an earlier ledger
	for _, key := range []string{"payment-9001", longKey} {
		for i, m := range []*manager{near, far} {
			call := map[string]any{"key": key, "scope": longScope, "token": fmt.Sprintf("of-%d", i)}
			m.call("/v1/ledger/reserve", call)
			call["result"] = map[string]any{"status": 201 + i, "headers": [][]string{}, "body": "e30="}
			m.call("/v1/ledger/commit", call)
		}
	}
	b := newTab(t, near.admin+"/ui/")
	b.login()
	found := false
	for !found { // until the changes are here
		b.open("ledger?list=conflict")
		b.do(chromedp.Evaluate(`document.querySelectorAll("tbody tr").length == 2`, &found))
	}
	b.look("conflicts")
	b.open("system")
	b.do(chromedp.WaitVisible(`//tr[th="dc2"]//*[.="answered"]`), chromedp.WaitVisible(`//tr[th="dc3"]//*[.="failed"]`))
	b.look("peers")
}

func TestLedgerInTheBrowser(t *testing.T) {
	t.Parallel()
	m := startManager(t)
	m.seed()
	b := newTab(t, m.admin+"/ui/")
	b.login()

	b.open("ledger?key=payment-4205")
	b.click("Show the recorded answer", "pay_42")
	b.look("answer")

	b.open("ledger?list=unknown")
	b.click("payment-4200", "Settle it")
	b.look("unknown")
	b.do(chromedp.Click(`input[value=committed]`), chromedp.SendKeys(`input[name=status]`, "201"), chromedp.SendKeys(`input[name=reason]`, "the payments service has it"))
	b.click("Settle", "Settled: duplicates get 410, which says that the work ran.")
}

func TestJobsInTheBrowser(t *testing.T) {
	t.Parallel()
	m := startManager(t)
	s := m.seed()
	b := newTab(t, m.admin+"/ui/")
	b.login()

	b.open("jobs/" + s.queued)
	b.click("Show them, and log that I did", "ann@example.org")
	b.look("payload")
	b.click("Cancel", "The job is cancelled")
	b.click("Retry", "The job is in the queue again")

	// Work that runs is not ended by one click.
	b.open("jobs/" + s.running)
	b.click("Cancel", "Cancel this job?")
	b.look("ask")
	b.click("Leave it as it is", "running")
	b.click("Cancel", "What this attempt has done so far is lost")
	b.click("Cancel the job", "cancel requested")

	b.open("jobs?function=mail.send&state=failed")
	b.do(chromedp.Click(`input[data-all]`))
	b.click("Replay", "Replay 3 jobs?")
	b.look("confirm")
	b.click("Replay 3 jobs", "3 of 3 jobs replayed")
	b.look("done")

	b.open("jobs?function=mail.send")
	b.click("Pause delivery", "The function is paused")
	b.click("Resume delivery", "given to workers again")

	b.do(chromedp.Click(`//summary[.="Set limits"]`), chromedp.SendKeys(`input[name=max_running]`, "5"), chromedp.SendKeys(`input[name=rate_count]`, "100"))
	b.look("set-limits")
	b.click("Set the limits", "At most 5 jobs run at the same time.")

	b.open("jobs?state=failed")
	b.do(chromedp.Click(`//summary[.="Filter by error, tenant or age"]`))
	b.look("filter")
	b.do(chromedp.SendKeys(`input[name=error_text]`, "Out of memory\r"), chromedp.WaitVisible(`//a[.="Remove the filter"]`), chromedp.WaitVisible(`//td/a[.="`+s.tried+`"]`))

	// A job that comes shows up by itself.
	b.open("jobs?state=queued")
	b.open("jobs")
	b.do(chromedp.WaitVisible(`//dt[.="Scheduled"]/following-sibling::dd[.="4"]`))
	m.call("/v1/jobs", map[string]any{"function": "report.build", "delay_ms": 3600000})
	b.do(chromedp.WaitVisible(`//dt[.="Scheduled"]/following-sibling::dd[.="5"]`))

	// The keyboard is enough.
	// (The driver types the slash as well, which a keyboard does not.)
	b.do(chromedp.KeyEvent("/"), chromedp.Evaluate(`document.activeElement.value = ""; 0`, nil), chromedp.SendKeys(`input:focus`, s.dead+"\r"), chromedp.WaitVisible(`//td/a[.="`+s.dead+`"]`))

	b.do(chromedp.Click(`//button[.="Log out"]`), chromedp.WaitVisible(`input[name=token]`))
	b.open("jobs/" + s.queued)
	b.do(chromedp.WaitVisible(`input[name=token]`))
}

func TestSchedulesAndEventsInTheBrowser(t *testing.T) {
	t.Parallel()
	m := startManager(t)
	m.seed()
	b := newTab(t, m.admin+"/ui/")
	b.login()

	b.open("jobs")
	b.click("Schedules", "report.nightly")
	b.do(chromedp.Click(`//button[@aria-label="Pause report.nightly"]`), chromedp.WaitVisible(`//*[contains(., "The schedule is paused")]`))
	b.do(chromedp.Click(`//button[@aria-label="Resume report.nightly"]`), chromedp.WaitVisible(`//*[contains(., "enqueues jobs again")]`))
	b.do(chromedp.Click(`//button[@aria-label="Run now report.nightly"]`), chromedp.WaitVisible(`//*[contains(., "The schedule's job is in the queue")]`))
	b.open("schedules")
	b.do(chromedp.Click(`//button[@aria-label="Delete report.nightly"]`), chromedp.WaitVisible(`//h1[.="Delete this schedule?"]`))
	b.look("ask-schedule")
	b.click("Delete the schedule", "The schedule is deleted")

	b.open("jobs")
	b.click("Events and their subscriptions", "order.paid")
	b.do(chromedp.Click(`//button[@aria-label="End the subscription of mail.send to order.paid"]`), chromedp.WaitVisible(`//h1[.="End this subscription?"]`))
	b.look("ask-subscription")
	b.click("End the subscription", "The subscription has ended")
}

func TestPagesWithoutJavaScript(t *testing.T) {
	t.Parallel()
	m := startManager(t)
	s := m.seed()
	b := newTab(t, m.admin+"/ui/")
	b.do(emulation.SetScriptExecutionDisabled(true))
	b.login()
	b.open("ledger")
	b.do(chromedp.SendKeys(`input[name=key]`, "payment-4205\r"), chromedp.WaitVisible(`//main//*[contains(., "committed")]`))
	b.open("jobs/" + s.queued)
	b.click("Cancel", "The job is cancelled")
}
