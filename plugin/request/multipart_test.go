package request

import (
	"bytes"
	"fmt"
	"mime/multipart"
	"net/textproto"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/plugin/config"
)

// form is a multipart body with a boundary of its own.
type form struct{ contentType, body string }

// upload writes fields and a file as client libraries do, with this boundary.
func upload(t testing.TB, boundary string, parts ...[3]string) form {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	if err := w.SetBoundary(boundary); err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		h := textproto.MIMEHeader{"Content-Disposition": {p[0]}}
		if p[1] != "" {
			h.Set("Content-Type", p[1])
		}
		part, err := w.CreatePart(h)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = part.Write([]byte(p[2]))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return form{w.FormDataContentType(), b.String()}
}

// print is the fingerprint of the form in body mode, if its body comes in pieces of this size.
func (f form) print(s *config.Fingerprint, limit, size int) string {
	d := NewDigester("")
	b := d.NewBody(s, with("content-type", f.contentType, "content-length", fmt.Sprint(len(f.body))), limit, config.DeriveNone)
	for rest := f.body; rest != ""; {
		n := min(size, len(rest))
		b.Write([]byte(rest[:n]))
		rest = rest[n:]
	}
	p := d.BodyFingerprint(b)
	return p.String()
}

var (
	field = [3]string{`form-data; name="amount"`, "", "100"}
	file  = [3]string{`form-data; name="f"; filename="a.bin"`, "application/octet-stream", strings.Repeat("x\r\n--y", 500)}
)

// Client libraries make a new boundary for each try, also of another length.
func TestAMultipartRetryMatches(t *testing.T) {
	auto, raw := settings(t, `"fingerprint":{}`), settings(t, `"fingerprint":{"body":"raw"}`)
	first, retry := upload(t, "b1", field, file), upload(t, strings.Repeat("Zz9", 20), field, file)
	for _, f := range []*config.Fingerprint{auto, settings(t, `"fingerprint":{"body":"canonical_json"}`), settings(t, `"fingerprint":{"body":"form"}`)} {
		for _, limit := range []int{1 << 20, len(first.body) - 200, 700, 100, 1} {
			if a, b := first.print(f, limit, 1<<20), retry.print(f, limit, 7); a != b {
				t.Errorf("limit %d: fingerprints %s and %s", limit, a, b)
			}
		}
	}
	if first.print(raw, 1<<20, 100) == retry.print(raw, 1<<20, 100) {
		t.Error("raw bodies with other boundaries match")
	}
	h := func(f form) Headers {
		return with("content-type", f.contentType, "content-length", fmt.Sprint(len(f.body)), "content-digest", f.body[:9])
	}
	d := NewDigester("")
	if a, b := d.Fingerprint(auto, h(first), false), d.Fingerprint(auto, h(retry), false); a != b || !strings.HasPrefix(first.print(auto, 1<<20, 99), a.String()) {
		t.Errorf("headers mode: %s and %s, body mode %s", a.String(), b.String(), first.print(auto, 1<<20, 99))
	}
}

func TestAnotherMultipartBodyDoesNotMatch(t *testing.T) {
	f := settings(t, `"fingerprint":{}`)
	want := upload(t, "b1", field, file).print(f, 1<<20, 1<<20)
	change := func(p [3]string, at int, to string) [3]string { p[at] = to; return p }
	for name, other := range map[string]form{
		"content":        upload(t, "b2", field, change(file, 2, file[2]+"!")),
		"field":          upload(t, "b2", change(field, 2, "999"), file),
		"name":           upload(t, "b2", change(field, 0, `form-data; name="total"`), file),
		"file name":      upload(t, "b2", field, change(file, 0, `form-data; name="f"; filename="b.bin"`)),
		"file type":      upload(t, "b2", field, change(file, 1, "image/png")),
		"order":          upload(t, "b2", file, field),
		"one more":       upload(t, "b2", field, file, field),
		"one less":       upload(t, "b2", field),
		"nothing":        upload(t, "b2"),
		"broken off":     {"multipart/form-data; boundary=b1", upload(t, "b1", field, file).body[:3000]},
		"subtype":        {"multipart/mixed; boundary=b1", upload(t, "b1", field, file).body},
		"other boundary": {"multipart/form-data; boundary=b2", upload(t, "b1", field, file).body},
		"no boundary":    {"multipart/form-data", upload(t, "b1", field, file).body},
	} {
		if other.print(f, 1<<20, 1<<20) == want {
			t.Errorf("a request with another %s has the same fingerprint", name)
		}
	}
}

// What is digested of a body does not depend on how the host cuts it into pieces.
func FuzzMultipart(f *testing.F) {
	ok := upload(f, "b", field, file).body
	for _, body := range []string{ok, ok[:40], "--b--", "--b\r\n\r\n\r\n--b--", "x--b", "--b  \r\nA: b\r\n c\r\n\r\n\r\n--bc\r\n--b--y", "--b\r\nContent-Disposition: " + strings.Repeat("a", 9000)} {
		f.Add(body, 3, 1000)
	}
	s := &config.Fingerprint{}
	f.Fuzz(func(t *testing.T, body string, size, limit int) {
		f := form{"multipart/form-data; boundary=b", body}
		size, limit = max(size, 1), max(limit, 0)
		if a, b := f.print(s, limit, size), f.print(s, limit, len(body)+1); a != b {
			t.Errorf("pieces of %d bytes: %s, the whole: %s", size, a, b)
		}
	})
}

// Parts that are read by another implementation, and written with another boundary, give the same fingerprint.
func FuzzMultipartBoundary(f *testing.F) {
	f.Add("100", "a\r\n--b", "form-data; name=a", "text/plain", 50)
	f.Fuzz(func(t *testing.T, one, two, disposition, contentType string, limit int) {
		for _, s := range []string{disposition, contentType} {
			if strings.ContainsAny(s, "\r\n") {
				t.Skip()
			}
		}
		parts := [][3]string{{disposition, contentType, one}, {"form-data; name=b", "", two}}
		const a, b = "0123456789abcdef", "----WebKitFormBoundary7MA4YWxkTrZu0gW7MA4YWxkTrZu0gW"
		if text := one + two; strings.Contains(text, a) || strings.Contains(text, b) {
			t.Skip()
		}
		s := &config.Fingerprint{}
		limit = max(limit, 0)
		if x, y := upload(t, a, parts...).print(s, limit, 50), upload(t, b, parts...).print(s, limit, 51); x != y {
			t.Errorf("fingerprints %s and %s", x, y)
		}
	})
}
