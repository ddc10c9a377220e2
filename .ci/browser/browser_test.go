package browser

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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

// manager is a real manager process with tokens.
type manager struct {
	t          testing.TB
	api, admin string // URLs
}

func startManager(t testing.TB, flags ...string) *manager {
	t.Helper()
	dir := t.TempDir()
	tokens, addresses := filepath.Join(dir, "tokens"), filepath.Join(dir, "addresses")
	if err := os.WriteFile(tokens, []byte(operatorToken+" operator\n"+adminToken+" admin\nsubmitter-token-of-the-tests submitter\nworker-token-of-the-tests worker:mail.send\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command(filepath.Join(top(t), "build", "oncegate"), append([]string{"serve", "--store", "wal", "--data-dir", filepath.Join(dir, "data"),
		"--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--addr-file", addresses, "--auth-token-file", tokens}, flags...)...)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v; make build first", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("manager: %s", log.String())
		}
	})
	m := &manager{t: t}
	for m.admin == "" {
		b, _ := os.ReadFile(addresses)
		for line := range strings.Lines(string(b)) {
			switch name, addr, _ := strings.Cut(strings.TrimSpace(line), " "); name {
			case "api":
				m.api = "http://" + addr
			case "admin":
				m.admin = "http://" + addr
			}
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("the manager ended: %v: %s", err, log.String())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return m
}

// call makes a call of the API and decodes the answer.
func (m *manager) call(path string, body map[string]any) map[string]any {
	m.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		m.t.Fatal(err)
	}
	req, err := http.NewRequest("POST", m.api+path, bytes.NewReader(b))
	if err != nil {
		m.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+adminToken)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		m.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 && resp.StatusCode != http.StatusUnprocessableEntity { // which is a mismatch
		m.t.Fatalf("POST %s %s: status %d %s, %v", path, b, resp.StatusCode, answer, err)
	}
	out := map[string]any{}
	if len(answer) > 0 {
		if err := json.Unmarshal(answer, &out); err != nil {
			m.t.Fatal(err)
		}
	}
	return out
}

// seeds are what seed made.
type seeds struct{ queued, dead string }

// seed fills a manager with what there is to look at.
func (m *manager) seed() (s seeds) {
	m.t.Helper()
	for i := range 70 {
		j := m.call("/v1/jobs", map[string]any{"function": "mail.send", "key": fmt.Sprintf("order-%d/confirmation", 1000+i), "payload": map[string]any{"to": "ann@example.org", "order": 1000 + i}})
		s.queued = j["id"].(string)
	}
	for i := range 4 {
		m.call("/v1/jobs", map[string]any{"function": "report.build", "payload": i, "delay_ms": 3600000})
	}
	m.call("/v1/functions/report.build/pause", map[string]any{})
	claimed := m.call("/v1/jobs/claim", map[string]any{"worker": "worker-7", "functions": []string{"mail.send"}, "limit": 9})["jobs"].([]any)
	for i, c := range claimed {
		j := c.(map[string]any)
		end := map[string]any{"lease_token": j["lease"].(map[string]any)["token"], "status": "complete", "result": map[string]any{"message": "250 ok"}}
		if i >= 4 {
			end["status"], end["error"] = "failed", "554 5.7.1 <ann@example.org>: relay access denied by mx1.example.org, the mailbox is unavailable"
			delete(end, "result")
			s.dead = j["id"].(string)
		}
		if i < 7 {
			m.call("/v1/jobs/"+j["id"].(string)+"/finish", end)
		}
	}
	for i := range 12 {
		key, token := fmt.Sprintf("payment-%d", 4200+i), fmt.Sprintf("%032d", i)
		m.call("/v1/ledger/reserve", map[string]any{"key": key, "token": token, "fingerprint": strings.Repeat("ab", 32)})
		if i > 3 {
			m.call("/v1/ledger/commit", map[string]any{"key": key, "token": token, "fingerprint": strings.Repeat("ab", 32), "result": map[string]any{
				"status": 201, "headers": [][]string{{"content-type", "application/json"}}, "body": "eyJpZCI6InBheV80MiJ9"}})
		}
	}
	m.call("/v1/ledger/reserve", map[string]any{"key": "payment-4205", "token": "another", "fingerprint": strings.Repeat("cd", 32)})
	m.call("/v1/ledger/unknown", map[string]any{"key": "payment-4200", "token": fmt.Sprintf("%032d", 0), "fingerprint": strings.Repeat("ab", 32)})
	return s
}

// tab is a page in a browser. It fails the test if the page has errors, or breaks its own content policy.
type tab struct {
	t    testing.TB
	ctx  context.Context
	base string // with /ui/
}

func newTab(t testing.TB, base string) *tab {
	t.Helper()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("%v; make test-deps installs it", err)
	}
	alloc, cancel := chromedp.NewExecAllocator(context.Background(), append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(chromium), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()), chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.WSURLReadTimeout(patience))...)
	ctx, cancelTab := chromedp.NewContext(alloc)
	t.Cleanup(func() {
		cancelTab()
		cancel()
	})
	var mu sync.Mutex
	var troubles []string
	chromedp.ListenTarget(ctx, func(event any) {
		mu.Lock()
		defer mu.Unlock()
		switch e := event.(type) {
		case *cdplog.EventEntryAdded:
			// The first page is the login with status 401, and one page is not there.
			if e.Entry.Level == cdplog.LevelError && !strings.Contains(e.Entry.Text, "status of 40") {
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
	b := &tab{t: t, ctx: ctx, base: base}
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

// click clicks a button or link with this text, and waits for the page behind it to say want.
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

var schemes = []scheme{{"light", "light", 1280, nil}, {"dark", "dark", 1280, []string{"color-contrast"}}, {"narrow", "light", 390, nil}}

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
		{"jobs", "jobs"}, {"function", "jobs?function=mail.send"}, {"dead", "jobs?function=mail.send&state=dead"}, {"search", "jobs?key=order-1030/confirmation"},
		{"job", "jobs/" + s.dead}, {"system", "system"}, {"missing", "jobs/none"},
	} {
		b.open(p.path)
		b.look(p.name)
	}
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
	b.click("Settle", "Settled: duplicates are told that the work ran.")
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

	b.open("jobs?function=mail.send&state=dead")
	b.do(chromedp.Click(`input[data-all]`))
	b.click("Replay", "Replay 3 jobs?")
	b.look("confirm")
	b.click("Replay 3 jobs", "3 of 3 jobs replayed")
	b.look("done")

	b.open("jobs?function=mail.send")
	b.click("Pause delivery", "The function is paused")
	b.click("Resume delivery", "given to workers again")

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
