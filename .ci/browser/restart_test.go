package browser

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"
)

// front is a proxy below whose prefix the pages of a manager are. It answers 502 while its manager is away.
type front struct {
	*httptest.Server
	to atomic.Pointer[url.URL]
}

const prefix = "/ops/dc1"

func newFront(t *testing.T, m *manager) *front {
	t.Helper()
	f := &front{}
	f.lead(t, m)
	f.Server = httptest.NewServer(http.StripPrefix(prefix, &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(f.to.Load()) },
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
		FlushInterval: -1,
	}))
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

func (f *front) lead(t *testing.T, m *manager) {
	t.Helper()
	to, err := url.Parse(m.admin)
	if err != nil {
		t.Fatal(err)
	}
	f.to.Store(to)
}

// TestPageOutlivesTheManager: a page says that its numbers are not fresh, and gets new ones from the manager's next start.
func TestPageOutlivesTheManager(t *testing.T) {
	t.Parallel()
	const lost, fresh = `.lost:not([hidden])`, `[data-live]:not(.stale)`
	m := startOpen(t)
	f := newFront(t, m)
	b := newTab(t, f.URL+prefix+"/ui/")
	b.open("jobs")
	b.do(chromedp.WaitVisible(`//dt[.="Scheduled"]/following-sibling::dd[.="0"]`))
	b.away.Store(true)
	m.kill()
	b.do(chromedp.WaitVisible(lost), chromedp.WaitNotPresent(fresh))
	b.look("lost")
	m = startOpen(t)
	m.call("/v1/jobs", map[string]any{"function": "report.build", "delay_ms": 3600000})
	f.lead(t, m)
	b.do(chromedp.WaitNotPresent(lost), chromedp.WaitVisible(fresh), chromedp.WaitVisible(`//dt[.="Scheduled"]/following-sibling::dd[.="1"]`))
}

// TestPageOutlivesItsSession: where the next start asks for a token again, the page leads to the login and back.
func TestPageOutlivesItsSession(t *testing.T) {
	t.Parallel()
	m := startManager(t)
	f := newFront(t, m)
	b := newTab(t, f.URL+prefix+"/ui/")
	b.login()
	b.open("system")
	b.away.Store(true)
	m.kill()
	f.lead(t, startManager(t))
	b.do(chromedp.WaitVisible(`.lost:not([hidden])`), chromedp.Click(`.lost a`),
		chromedp.SendKeys(`input[name=token]`, operatorToken+"\r"), chromedp.WaitVisible(`//h1[text()="System"]`), chromedp.WaitVisible(`[data-live]:not(.stale)`))
}
