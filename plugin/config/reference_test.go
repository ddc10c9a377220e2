package config

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// row is one line of a table in docs/reference/CONFIGURATION.md.
type row struct{ section, name, def, allowed string }

// reference reads the tables of docs/reference/CONFIGURATION.md.
func reference(t *testing.T) []row {
	t.Helper()
	text, err := os.ReadFile("../../docs/reference/CONFIGURATION.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []row
	section := ""
	for _, line := range strings.Split(string(text), "\n") {
		if s, ok := strings.CutPrefix(line, "## "); ok {
			section = s
		}
		if !strings.HasPrefix(line, "| `") || section != onceSection && section != matchSection && section != bothSection {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if len(cells) != 4 {
			t.Fatalf("not a row of 4 cells: %s", line)
		}
		plain := func(s string) string { return strings.Trim(s, " `") }
		rows = append(rows, row{section, plain(cells[0]), plain(cells[1]), strings.TrimSpace(cells[2])})
	}
	if len(rows) < 30 {
		t.Fatalf("only %d rows found", len(rows))
	}
	return rows
}

const (
	onceSection  = "Once per filter"
	matchSection = "In each element of `match`"
	bothSection  = "At the top level, and in any element of `match`"
)

// parserFields asks the parser for the fields it knows in an object, through
// the error for an unknown one.
func parserFields(t *testing.T, wrap string) []string {
	t.Helper()
	_, err := Parse([]byte(strings.Replace(wrap, "%", `{"no such field": 1}`, 1)))
	if err == nil {
		t.Fatalf("%s: an unknown field was accepted", wrap)
	}
	_, list, ok := strings.Cut(err.Error(), "unknown field; allowed: ")
	if !ok {
		t.Fatalf("%s: unexpected error %q", wrap, err)
	}
	return strings.Split(list, ", ")
}

// TestReferenceHasEveryField compares the names in both directions.
func TestReferenceHasEveryField(t *testing.T) {
	documented := map[string][]string{}
	for _, r := range reference(t) {
		documented[r.section] = append(documented[r.section], r.name)
	}
	objects := map[string]string{
		"manager":      `{"manager": %}`,
		"commit_retry": `{"commit_retry": %}`,
		"key":          `{"key": %}`,
		"outcomes":     `{"outcomes": %}`,
		"upstream":     `{"upstream": %}`,
		"fingerprint":  `{"fingerprint": %}`,
		"lookup":       `{"lookup": %}`,
		"response":     `{"response": %}`,
		"replay":       `{"replay": %}`,
		"problems":     `{"problems": %}`,
		"forward":      `{"forward": %}`,
	}
	expand := func(names []string) (all []string) {
		for _, n := range names {
			wrap, isObject := objects[n]
			if !isObject {
				all = append(all, n)
				continue
			}
			for _, sub := range parserFields(t, wrap) {
				all = append(all, n+"."+sub)
			}
		}
		slices.Sort(all)
		return all
	}
	join := func(sections ...string) (all []string) {
		for _, s := range sections {
			all = append(all, documented[s]...)
		}
		slices.Sort(all)
		return all
	}
	if got, want := expand(parserFields(t, "%")), join(onceSection, bothSection); !slices.Equal(got, want) {
		t.Errorf("top level:\nparser %v\n   doc %v", got, want)
	}
	if got, want := expand(parserFields(t, `{"match": [%]}`)), join(matchSection, bothSection); !slices.Equal(got, want) {
		t.Errorf("match:\nparser %v\n   doc %v", got, want)
	}
}

// nest builds {"a": {"b": value}} from the name a.b, below the section's level.
func nest(r row, value string) string {
	parts := strings.Split(r.name, ".")
	for i := len(parts) - 1; i >= 0; i-- {
		value = `{"` + parts[i] + `": ` + value + `}`
	}
	if r.section == matchSection {
		return `{"match": [` + value + `]}`
	}
	return value
}

// TestDocumentedDefaultsChangeNothing gives every documented default explicitly, one at a
// time and all at once, and expects the configuration that an empty input gives.
func TestDocumentedDefaultsChangeNothing(t *testing.T) {
	want := mustParse(t, "")
	all := map[string]any{}
	for _, r := range reference(t) {
		if r.def == "" {
			continue
		}
		var value any
		if err := json.Unmarshal([]byte(r.def), &value); err != nil {
			t.Errorf("%s: the default %s is not JSON: %v", r.name, r.def, err)
			continue
		}
		one, err := Parse([]byte(nest(r, r.def)))
		if err != nil {
			t.Errorf("%s = %s: %v", r.name, r.def, err)
		} else if !sameConfig(one, want) {
			t.Errorf("%s = %s is not the default: %+v", r.name, r.def, one)
		}
		if r.section == matchSection {
			continue
		}
		object := all
		parts := strings.Split(r.name, ".")
		for _, p := range parts[:len(parts)-1] {
			if object[p] == nil {
				object[p] = map[string]any{}
			}
			object = object[p].(map[string]any)
		}
		object[parts[len(parts)-1]] = value
	}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	if got := mustParse(t, string(text)); !sameConfig(got, want) {
		t.Errorf("all defaults at once:\n got %+v\nwant %+v", got, want)
	}
}

// sameConfig compares two configurations; the order of outcome terms carries
// no meaning, so outcomes are compared by what they decide.
func sameConfig(a, b *Config) bool {
	ca, cb := *a, *b
	strip := func(rules []rule) []rule {
		rules = slices.Clone(rules)
		for i := range rules {
			rules[i].route.Outcomes.terms = nil
		}
		return rules
	}
	ca.rules, cb.rules = strip(a.rules), strip(b.rules)
	if !reflect.DeepEqual(ca, cb) {
		return false
	}
	for i := range a.rules {
		for status := 100; status < 700; status++ {
			for _, retryAfter := range []bool{false, true} {
				x := a.rules[i].route.Outcomes.Classify(status, retryAfter)
				y := b.rules[i].route.Outcomes.Classify(status, retryAfter)
				if x != y {
					return false
				}
			}
		}
	}
	return true
}

// TestDocumentedRangesHold tries both ends of every documented numeric range and
// what lies just beyond them, at every level where the field may stand.
func TestDocumentedRangesHold(t *testing.T) {
	form := regexp.MustCompile(`^([0-9.]+) to ([0-9.]+)$`)
	found := 0
	for _, r := range reference(t) {
		m := form.FindStringSubmatch(r.allowed)
		if m == nil {
			continue
		}
		found++
		low, high := m[1], m[2]
		levels := []func(string) string{func(v string) string { return nest(r, v) }}
		if r.section == bothSection {
			levels = append(levels, func(v string) string { return `{"match": [` + nest(r, v) + `]}` })
		}
		for _, level := range levels {
			for _, v := range []string{low, high} {
				text := level(v)
				if r.name == "commit_retry.initial_ms" {
					text = `{"commit_retry": {"initial_ms": ` + v + `, "max_ms": 600000}}`
				}
				if r.name == "commit_retry.max_ms" {
					text = `{"commit_retry": {"initial_ms": 10, "max_ms": ` + v + `}}`
				}
				if _, err := Parse([]byte(text)); err != nil {
					t.Errorf("%s: %v", text, err)
				}
			}
			for _, v := range []string{below(t, low), above(t, high), "-1", `"5"`, "null", "true", "[]", "{}"} {
				text := level(v)
				_, err := Parse([]byte(text))
				if err == nil {
					t.Errorf("%s was accepted", text)
				} else if want := low + " to " + high; !strings.Contains(err.Error(), r.name+": "+v+"; allowed: ") || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: the error %q does not name field, value and range", text, err)
				}
			}
		}
	}
	if found < 12 {
		t.Errorf("only %d ranges found in the reference", found)
	}
}

func below(t *testing.T, low string) string {
	if low == "0.001" {
		return "0.0009"
	}
	n, err := strconv.Atoi(low)
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(n - 1)
}

func above(t *testing.T, high string) string {
	n, err := strconv.ParseInt(high, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return strconv.FormatInt(n+1, 10)
}

func mustParse(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Parse([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return c
}
