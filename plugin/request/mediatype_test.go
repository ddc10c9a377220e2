package request

import (
	"mime"
	"net/url"
	"strings"
	"testing"
)

func TestContentTypesThatMatch(t *testing.T) {
	media := settings(t, `"fingerprint":{}`)
	for _, c := range []struct {
		first, retry string
		same         bool
	}{
		{"application/json", "application/json; charset=utf-8", true},
		{"application/json", "Application/JSON;charset=\"UTF-8\"", true},
		{"application/json; charset=latin1", "application/json", true}, // JSON has no charset
		{"application/vnd.api+json;charset=x", "application/vnd.api+json", true},
		{"text/plain", "text/plain; charset=utf8", true},
		{"text/plain", "text/plain; charset=latin1", false},
		{"text/plain; charset=LATIN1", `text/plain;charset="latin1"`, true},
		{"application/json", "text/plain", false},
		{"application/json; profile=a", "application/json; profile=b", false},
		{`a/b; x="1;2"; y=3`, `a/b;Y=3; x="1\;2"`, true},
		{"a/b; v=A", "a/b; v=a", false},
		{"-", "application/json", false},
	} {
		exact, none := settings(t, `"fingerprint":{"content_type":"exact"}`), settings(t, `"fingerprint":{"content_type":"none"}`)
		first, retry := with("content-type", c.first), with("content-type", c.retry)
		if got := headersPrint(media, first) == headersPrint(media, retry); got != c.same {
			t.Errorf("%q and %q match: %v, want %v", c.first, c.retry, got, c.same)
		}
		if headersPrint(exact, first) == headersPrint(exact, retry) {
			t.Errorf("exact: %q and %q match", c.first, c.retry)
		}
		if headersPrint(none, first) != headersPrint(none, retry) {
			t.Errorf("none: %q and %q do not match", c.first, c.retry)
		}
	}
}

func TestFormsAreComparedByFields(t *testing.T) {
	f := settings(t, `"fingerprint":{"body":"form"}`)
	h := with("content-type", "application/x-www-form-urlencoded; charset=utf-8", "content-length", "9")
	for _, c := range []struct {
		first, retry string
		same         bool
	}{
		{"a=1&b=x+y", "b=x%20y&&a=1", true},
		{"a=1&a=2", "a=2&a=1", false},
		{"a=", "a", true},
		{"a=1", "a=2", false},
		{"a=1&b=2", "a=1", false},
		{"a=%3D", "a==", true},
		{strings.Repeat("a&", maxFields+1), strings.Repeat("a&", maxFields+1) + "&", false},
	} {
		d := NewDigester("")
		print := func(body string) Fingerprint {
			b := d.NewBody(f, h, 1<<20, 0)
			b.Write([]byte(body))
			d.Canonical(b, []byte(body), f)
			return d.BodyFingerprint(b)
		}
		if got := print(c.first) == print(c.retry); got != c.same {
			t.Errorf("%.20q and %.20q match: %v, want %v", c.first, c.retry, got, c.same)
		}
	}
	// Query parameters are compared as fields, too, so the base differs.
	all := settings(t, `"fingerprint":{"query":"all"}`)
	json := with("content-type", "application/json")
	if printOf(f, json, `{"a":1}`) != printOf(all, json, `{"a":1}`) {
		t.Error("a body that is no form is not compared by bytes")
	}
}

// Forms match if the standard library reads the same fields.
func FuzzForm(f *testing.F) {
	f.Add("a=1&b=x+y", "b=x%20y&&a=1")
	f.Add("a=1&a=2", "a=2&a=1")
	f.Add("a", "=a")
	form := settings(f, `"fingerprint":{"body":"form"}`)
	h := with("content-type", "application/x-www-form-urlencoded")
	d := NewDigester("")
	f.Fuzz(func(t *testing.T, one, other string) {
		a, err := url.ParseQuery(one)
		b, err2 := url.ParseQuery(other)
		if err != nil || err2 != nil {
			return
		}
		print := func(body string) Fingerprint {
			b := d.NewBody(form, h, 1<<20, 0)
			b.Write([]byte(body))
			d.Canonical(b, []byte(body), form)
			return d.BodyFingerprint(b)
		}
		if got, want := print(one) == print(other), a.Encode() == b.Encode(); got != want {
			t.Errorf("%q and %q match: %v, want %v", one, other, got, want)
		}
		if print(one) != print(a.Encode()) {
			t.Errorf("%q and %q do not match", one, a.Encode())
		}
	})
}

// The gate's memory never shrinks, so a form with too many fields costs no more of it than another body.
func TestFormOfTooManyFieldsCostsNoMemory(t *testing.T) {
	body := []byte(strings.Repeat("a&", 1<<18))
	if n := testing.AllocsPerRun(1, func() {
		if _, ok := appendForm(nil, body); ok {
			t.Error("its fields are compared")
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// Types that the standard library reads in the same way match.
func FuzzMediaType(f *testing.F) {
	for _, s := range []string{"a/b", `A/b; c="d;\"e"; f`, "multipart/x; boundary=\"a b\";", ";=;\"", "a/b;charset=UTF-8"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := string(appendMediaType(nil, s))
		if boundary := boundaryOf(s); len(boundary) > maxBoundary {
			t.Errorf("boundary %q", boundary)
		}
		media, params, err := mime.ParseMediaType(s) // which forgets a repeated parameter
		if err != nil || strings.Count(s, "=") != len(params) || strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' || c == '*' }) {
			return
		}
		if again := string(appendMediaType(nil, mime.FormatMediaType(media, params))); again != got && mime.FormatMediaType(media, params) != "" {
			t.Errorf("%q gives %q, but as the standard library writes it %q", s, got, again)
		}
	})
}
