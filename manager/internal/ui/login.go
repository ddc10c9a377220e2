package ui

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/oncegate/oncegate/manager/internal/httpd"
)

// visitors may see the pages.
const visitors = httpd.Operator

// loginData is what the page with the token's field shows.
type loginData struct {
	// Next is the page to go to, relative to Root.
	Next string
	// Refused says why a token was not taken.
	Refused string
}

// askForToken shows the login instead of a page.
func (v *visit) askForToken() {
	next := ""
	if v.r.Method == http.MethodGet {
		next = strings.TrimPrefix(withQuery(v.r.URL), "/ui/")
	}
	v.login(http.StatusUnauthorized, loginData{Next: safeNext(next)})
}

func (v *visit) login(status int, d loginData) {
	if err := v.renderStatus(status, "login", "Log in", d); err != nil {
		v.fail(err)
	}
}

// safeNext returns a page of ours, "" for anything else: a link to the login must not lead elsewhere.
func safeNext(next string) string {
	to, err := url.Parse(next)
	if err != nil || to.IsAbs() || to.Host != "" || to.User != nil || strings.ContainsAny(next, "\\") || strings.Contains(to.Path, "..") {
		return ""
	}
	switch page, _, _ := strings.Cut(to.Path, "/"); page {
	case "ledger", "jobs", "schedules", "subscriptions", "system":
		return withQuery(to)
	}
	return ""
}

func withQuery(to *url.URL) string {
	if to.RawQuery == "" {
		return to.EscapedPath()
	}
	return to.EscapedPath() + "?" + to.RawQuery
}

func (u *UI) loginPage(v *visit) error {
	next := safeNext(v.r.URL.Query().Get("next"))
	if v.LoggedIn || !v.asked {
		return v.redirect(next)
	}
	v.login(http.StatusOK, loginData{Next: next})
	return nil
}

// takeToken begins a session. The form needs no CSRF token: there is no session yet, and the sender
// must know a token.
func (u *UI) takeToken(v *visit) error {
	next := safeNext(v.r.URL.Query().Get("next"))
	if !v.asked {
		return v.redirect(next)
	}
	id := httpd.IDOf(v.r.PostForm.Get("token"))
	p, known := u.opts.Auth.Person(id)
	switch {
	case !known:
		u.opts.Audit.Warn("login on the web page refused", "remote", v.r.RemoteAddr, "reason", "the token is not valid")
		v.login(http.StatusUnauthorized, loginData{Next: next, Refused: "This token is not valid."})
	case !p.May(visitors):
		u.opts.Audit.Warn("login on the web page refused", "remote", v.r.RemoteAddr, "reason", "the token is neither an operator's nor an administrator's", "token", p.Number)
		v.login(http.StatusForbidden, loginData{Next: next, Refused: "This token is valid, but not for this page: its line in the token file must have the word operator or admin."})
	default:
		u.opts.Audit.Info("login on the web page", "remote", v.r.RemoteAddr, "token", p.Number)
		u.endSession(v)
		u.setCookie(v, u.sessions.open(id), int(sessionLength.Seconds()))
		return v.redirect(next)
	}
	return nil
}

func (u *UI) endSession(v *visit) {
	if c, err := v.r.Cookie(cookieName(v.r)); err == nil {
		u.sessions.close(c.Value)
	}
}

func (u *UI) logout(v *visit) error {
	u.endSession(v)
	u.setCookie(v, "", -1)
	if !v.asked {
		return v.redirect("")
	}
	return v.redirect("login")
}
