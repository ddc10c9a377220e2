package ui

import (
	"embed"
	"fmt"
	"html"
	"html/template"
	"io/fs"
	"math"
	"net/url"
	"path"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

//go:embed templates
var templateFiles embed.FS

// templates are the pages by name. Each is frame.html, the parts that begin with "part_", and a
// file of its own.
var templates = parseTemplates()

func parseTemplates() map[string]*template.Template {
	frame := template.Must(template.New("").Funcs(template.FuncMap{
		"show": show, "when": when, "ago": ago, "num": num, "bytes": byteSize, "lasts": lasts, "exactly": exactly, "segment": url.PathEscape,
		"query": query, "percent": percent, "clip": clip, "short": short, "sentence": sentence, "briefKey": func() int { return briefKey }, "long": long, "showText": showText, "change": changeText, "worker": worker, "holder": holder, "endedBy": endedBy, "inc": func(n int) int { return n + 1 },
	}).ParseFS(templateFiles, "templates/frame.html", "templates/part_*.html"))
	names, err := fs.Glob(templateFiles, "templates/*.html")
	if err != nil {
		panic(err)
	}
	all := make(map[string]*template.Template)
	for _, file := range names {
		name := strings.TrimSuffix(path.Base(file), ".html")
		if name == "frame" || strings.HasPrefix(name, "part_") {
			continue
		}
		all[name] = template.Must(template.Must(frame.Clone()).ParseFS(templateFiles, file))
	}
	return all
}

// show makes visible what would not be, or would change how its surroundings look: control
// characters, changes of the writing direction, bytes that are no text. The template escapes it.
func show(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsGraphic(r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		}
		i += n
	}
	return b.String()
}

// showText is show of a text with lines and tabs.
func showText(s string) string {
	lines := strings.Split(strings.ReplaceAll(s, "\r\n", "\n"), "\n")
	for i := range lines {
		cells := strings.Split(lines[i], "\t")
		for c := range cells {
			cells[c] = show(cells[c])
		}
		lines[i] = strings.Join(cells, "\t")
	}
	return strings.Join(lines, "\n")
}

// worker names who has a job, or who had it last as far as its errors show.
func worker(j jobs.Job) string {
	switch {
	case j.Lease != nil:
		return j.Lease.Worker
	case len(j.Errors) > 0:
		return j.Errors[len(j.Errors)-1].Worker
	}
	return ""
}

// held is the data of the template "holder".
type held struct{ Root, Job, Holder string }

func holder(p *page, job, by string) held { return held{p.Root, job, by} }

// clip shortens a text for a table.
func clip(s string) string {
	const most = 160
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// briefKey is how many characters of a key a list shows.
const briefKey = 72

// short shows the beginning and the end of a text, at most a number of characters.
func short(most int, s string) string {
	r := []rune(show(s))
	if len(r) <= most {
		return string(r)
	}
	end := most / 3
	return string(r[:most-1-end]) + "…" + string(r[len(r)-end:])
}

// sentence shows the detail of a problem as a sentence.
func sentence(s string) string {
	first, n := utf8.DecodeRuneInString(s)
	if s = show(string(unicode.ToUpper(first)) + s[n:]); strings.HasSuffix(s, ".") {
		return s
	}
	return s + "."
}

// long reports whether a list shows only a part of a key.
func long(key string) bool { return utf8.RuneCountInString(show(key)) > briefKey }

// when is a time in absolute form for machines and people, and in relative form. JavaScript keeps the
// latter up to date.
func when(t time.Time) template.HTML {
	if t.IsZero() {
		return "–"
	}
	t = t.UTC()
	return template.HTML(`<time datetime="` + t.Format(time.RFC3339) + `"><span class="ago">` + html.EscapeString(ago(t)) +
		`</span> <span class="date">` + t.Format("2006-01-02 15:04:05") + ` UTC</span></time>`)
}

// ago is a time relative to now.
func ago(t time.Time) string {
	d := time.Since(t)
	switch {
	case d < 0 && d > -time.Second, d >= 0 && d < time.Second:
		return "now"
	case d < 0:
		return "in " + lasts(-d)
	}
	return lasts(d) + " ago"
}

// lasts is about how long something takes, in its largest unit. See exactly for what somebody has chosen.
func lasts(d time.Duration) string {
	unit := func(n int64, name string) string {
		if n == 1 {
			return "1 " + name
		}
		return strconv.FormatInt(n, 10) + " " + name + "s"
	}
	switch s := int64(d / time.Second); {
	case d <= 0:
		return "0 seconds"
	case d < time.Millisecond:
		return strconv.FormatInt(d.Microseconds(), 10) + " µs"
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case s < 60:
		return unit(s, "second")
	case s < 3600:
		return unit(s/60, "minute")
	case s < 48*3600:
		return unit(s/3600, "hour")
	default:
		return unit(s/86400, "day")
	}
}

// num is a whole number with groups of three digits.
func num(v any) string {
	s := fmt.Sprint(v)
	sign := ""
	if strings.HasPrefix(s, "-") {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:] // a narrow space
	}
	return sign + s
}

// whole reads any kind of whole number, for the templates' sake.
func whole(v any) float64 {
	switch n := reflect.ValueOf(v); {
	case n.CanInt():
		return float64(n.Int())
	case n.CanUint():
		return float64(n.Uint())
	}
	return 0
}

// byteSize is a number of bytes in the unit that suits it.
func byteSize(n any) string {
	f := whole(n)
	for _, unit := range []string{"bytes", "KiB", "MiB", "GiB", "TiB"} {
		if f < 1024 || unit == "TiB" {
			if unit == "bytes" {
				return strconv.FormatFloat(f, 'f', 0, 64) + " " + unit
			}
			return strconv.FormatFloat(f, 'f', 1, 64) + " " + unit
		}
		f /= 1024
	}
	return ""
}

// percent is a part of a whole, 0 without a whole.
func percent(part, of any) int {
	if whole(of) <= 0 {
		return 0
	}
	return int(math.Round(100 * whole(part) / whole(of)))
}

// query makes the query of an address of names and values in turn, and leaves out empty values.
func query(pairs ...string) template.URL {
	v := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			v.Set(pairs[i], pairs[i+1])
		}
	}
	if len(v) == 0 {
		return ""
	}
	return template.URL("?" + v.Encode())
}
