package ui

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/httpd"
)

// Bounds of sessions. One more than maxSessions ends the one that was used least recently.
const (
	maxSessions   = 256
	sessionIdle   = 2 * time.Hour
	sessionLength = 12 * time.Hour
)

// cookieName is the cookie of a session. It has no path: a browser sends it where it came from,
// which is the pages' own folder below whatever prefix they have. Browsers share cookies between ports,
// so the name has the port: a person may look at several managers by forwarded ports of one machine.
func cookieName(r *http.Request) string {
	name := "oncegate_ui"
	if _, port, err := net.SplitHostPort(r.Host); err == nil && port != "" {
		if _, err := strconv.ParseUint(port, 10, 16); err == nil {
			name += "_" + port
		}
	}
	return name
}

// session is what is known of a person who showed a token.
type session struct {
	token      httpd.TokenID
	began      time.Time
	used       time.Time
	csrfSecret [16]byte
}

// sessions are found by the digest of the cookie's value, so that the time of a look-up shows
// nothing of any value.
type sessions struct {
	clock func() time.Time
	mu    sync.Mutex
	all   map[[sha256.Size]byte]*session
}

// open begins a session and returns the cookie's value.
func (s *sessions) open(token httpd.TokenID) string {
	var raw [32]byte
	_, _ = rand.Read(raw[:])
	value := base64.RawURLEncoding.EncodeToString(raw[:])
	now := s.clock()
	n := &session{token: token, began: now, used: now}
	_, _ = rand.Read(n.csrfSecret[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = make(map[[sha256.Size]byte]*session)
	}
	var oldest [sha256.Size]byte
	for id, other := range s.all {
		if other.over(now) {
			delete(s.all, id)
		} else if o := s.all[oldest]; o == nil || other.used.Before(o.used) {
			oldest = id
		}
	}
	if len(s.all) >= maxSessions {
		delete(s.all, oldest)
	}
	s.all[sha256.Sum256([]byte(value))] = n
	return value
}

func (s *session) over(now time.Time) bool {
	return now.Sub(s.used) > sessionIdle || now.Sub(s.began) > sessionLength
}

// find returns the session of a cookie's value. Used says that a person did something, which the
// live parts of a page do not.
func (s *sessions) find(value string, used bool) (session, bool) {
	id := sha256.Sum256([]byte(value))
	now := s.clock()
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.all[id]
	if found == nil {
		return session{}, false
	}
	if found.over(now) {
		delete(s.all, id)
		return session{}, false
	}
	if used {
		found.used = now
	}
	return *found, true
}

func (s *sessions) close(value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, sha256.Sum256([]byte(value)))
}

// identify finds out whose request it is. It reports false if a token is asked for and there is no
// session of one that may use the pages.
func (u *UI) identify(v *visit) bool {
	v.asked = u.opts.Auth.TokensAsked()
	if !v.asked {
		v.person = u.opts.Auth.Anonymous()
		v.CSRF = u.csrf(nil)
		return true
	}
	cookie, err := v.r.Cookie(cookieName(v.r))
	if err != nil {
		return false
	}
	s, ok := u.sessions.find(cookie.Value, !v.stream)
	if !ok {
		return false
	}
	p, ok := u.opts.Auth.Person(s.token)
	if !ok || !p.May(visitors) {
		u.sessions.close(cookie.Value) // the token was removed, or has other words now
		return false
	}
	v.person, v.LoggedIn, v.CSRF = p, true, u.csrf(s.csrfSecret[:])
	return true
}

// csrf is the token that forms of a session carry. Without a session it proves that the sender has
// read a page, which no other site can.
func (u *UI) csrf(secret []byte) string {
	m := hmac.New(sha256.New, u.secret[:])
	m.Write(secret)
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil)[:24])
}

func (u *UI) formIsOurs(v *visit) bool {
	return hmac.Equal([]byte(v.r.PostForm.Get("csrf")), []byte(v.CSRF))
}

func (u *UI) setCookie(v *visit, value string, maxAge int) {
	http.SetCookie(v.w, &http.Cookie{
		Name: cookieName(v.r), Value: value, MaxAge: maxAge, HttpOnly: true, SameSite: http.SameSiteLaxMode,
		// The form's origin shows how the browser reached it, whatever proxies are between.
		Secure: v.r.TLS != nil || strings.HasPrefix(v.r.Header.Get("Origin"), "https://"),
	})
}
