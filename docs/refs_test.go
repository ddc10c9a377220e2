package docs

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link       = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading    = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	fence      = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	spanOf     = regexp.MustCompile("`([^`\n]+)`")
	repoPath   = regexp.MustCompile(`^(?:\.ci|charts|docs|e2e|envoy|examples|hostsim|manager|plugin)(?:/[\w.*-]+)*/?$`)
	docFile    = regexp.MustCompile(`(?:[\w.-]+/)*[A-Z]+\.md\b|docs/[\w./-]+\.md\b(?:#[\w-]+)?`)
	testName   = regexp.MustCompile(`^(?:Test|Benchmark|Fuzz|Example)[A-Z]\w*`)
	testFunc   = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz|Example)\w+)\(`)
	diffCase   = regexp.MustCompile(`^envoydiff: (.+)$`)
	makeTarget = regexp.MustCompile(`^make ([a-z][a-z0-9-]*)`)
	// Lines of code blocks that run a make target, or a test by its name.
	indented = regexp.MustCompile(`(?m)^    .*$`)
	makeLine = regexp.MustCompile(`(?m)^ *(?:\$ )?(?:[A-Z_]+=\S+ )*make ([a-z][a-z0-9/-]*)`)
	testLine = regexp.MustCompile(`(?m)^ *(?:\$ )?(?:[A-Z_]+=\S+ )*go test .*-run ((?:Test|Benchmark|Fuzz|Example)\w+)`)
)

// slug is the anchor of a heading, as GitHub makes it.
func slug(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(strings.ReplaceAll(heading, "`", "")) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_', r > 127:
			b.WriteRune(r)
		case r == ' ':
			b.WriteByte('-')
		}
	}
	return b.String()
}

// anchorsOf returns the anchors of a document's headings. Code blocks must not be in text.
func anchorsOf(text string) map[string]bool {
	anchors := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(text, -1) {
		anchors[slug(h[1])] = true
	}
	return anchors
}

// inRepository reports whether a slash path, relative to the root, is of a file or folder of the repository.
func inRepository(name string) bool {
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return false
	}
	_, err := os.Stat(filepath.Join(root, filepath.FromSlash(name)))
	return err == nil
}

// Each link of a document leads to a file of the repository, and to a heading that is there.
func TestLinksLeadSomewhere(t *testing.T) {
	anchors := map[string]map[string]bool{}
	documents := map[string]string{}
	eachFile(t, func(name string, content []byte) {
		if path.Ext(name) != ".md" {
			return
		}
		text := fence.ReplaceAllString(string(content), "")
		documents[name] = text
		anchors[name] = anchorsOf(text)
	})
	for name, text := range documents {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			to, anchor, _ := strings.Cut(m[1], "#")
			switch {
			case strings.HasPrefix(to, "https://"):
				continue
			case to == "":
				to = name
			default:
				to = path.Join(path.Dir(name), to)
			}
			if !inRepository(to) {
				t.Errorf("%s: the link %s leads to no file of the repository", name, m[1])
			} else if anchor != "" && !anchors[to][anchor] {
				t.Errorf("%s: %s has no heading #%s", name, to, anchor)
			}
		}
	}
}

// TestNamesInDocuments: the paths, tests and make targets that documents name, in code spans and in commands, are there.
func TestNamesInDocuments(t *testing.T) {
	var cases strings.Builder
	tests := map[string]bool{}
	documents := map[string]string{}
	makefile := ""
	eachFile(t, func(name string, content []byte) {
		if path.Ext(name) == ".go" {
			for _, m := range testFunc.FindAllSubmatch(content, -1) {
				tests[string(m[1])] = true
			}
		}
		switch {
		case strings.HasPrefix(name, "e2e/envoydiff/"):
			cases.Write(content)
		case path.Ext(name) == ".md":
			documents[name] = string(content)
		case name == "Makefile":
			makefile = string(content)
		}
	})
	for name, text := range documents {
		commands := strings.Join(append(fence.FindAllString(text, -1), indented.FindAllString(text, -1)...), "\n")
		for _, m := range makeLine.FindAllStringSubmatch(commands, -1) {
			if !regexp.MustCompile(`(?m)^` + m[1] + `:`).MatchString(makefile) {
				t.Errorf("%s: the Makefile has no target %s", name, m[1])
			}
		}
		for _, m := range testLine.FindAllStringSubmatch(commands, -1) {
			if !tests[m[1]] {
				t.Errorf("%s: there is no test %s", name, m[1])
			}
		}
		for _, m := range spanOf.FindAllStringSubmatch(text, -1) {
			span := m[1]
			if f := diffCase.FindStringSubmatch(span); f != nil {
				if !strings.Contains(cases.String(), `name: "`+f[1]+`"`) {
					t.Errorf("%s: envoydiff has no case %q", name, f[1])
				}
			} else if f := testName.FindString(span); f != "" {
				if !tests[f] {
					t.Errorf("%s: there is no test %s", name, f)
				}
			} else if f := makeTarget.FindStringSubmatch(span); f != nil {
				if !regexp.MustCompile(`(?m)^` + f[1] + `:`).MatchString(makefile) {
					t.Errorf("%s: the Makefile has no target %s", name, f[1])
				}
			} else if repoPath.MatchString(span) && strings.Contains(span, "/") {
				if p := strings.TrimSuffix(strings.TrimSuffix(span, "/..."), "/"); !strings.Contains(p, "*") && !inRepository(p) {
					t.Errorf("%s: there is no %s", name, span)
				}
			}
		}
	}
}

// TestEachRowOfTheComparisonIsTested: each row of docs/comparison.md names a test that shows Oncegate's cell.
// TestNamesInDocuments checks that the tests are there.
func TestEachRowOfTheComparisonIsTested(t *testing.T) {
	text, err := os.ReadFile("comparison.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		shownBy := strings.TrimSpace(cells[len(cells)-1])
		if len(cells) != 7 {
			t.Errorf("%d cells, want 7: %s", len(cells), line)
		}
		if shownBy == "shown by" {
			continue
		}
		rows++
		for name := range strings.SplitSeq(shownBy, ", ") {
			if testName.FindString(strings.Trim(name, "`")) == "" {
				t.Errorf("%q is no test: %s", name, line)
			}
		}
	}
	if rows < 20 {
		t.Errorf("%d rows", rows)
	}
}

// TestDocumentsThatCodeNames: a document that a comment, a log line or a configuration names is there, and so is its heading.
func TestDocumentsThatCodeNames(t *testing.T) {
	eachFile(t, func(name string, content []byte) {
		if path.Ext(name) == ".md" || strings.HasPrefix(name, "docs/") {
			return
		}
		for _, to := range docFile.FindAllString(prose(name, content), -1) {
			to, anchor, _ := strings.Cut(to, "#")
			if !inRepository(to) && !inRepository(path.Join(path.Dir(name), to)) {
				t.Errorf("%s: there is no %s; name it by its path from the top", name, to)
			} else if anchor != "" {
				text, err := os.ReadFile(filepath.Join(root, to))
				if err != nil || !anchorsOf(fence.ReplaceAllString(string(text), ""))[anchor] {
					t.Errorf("%s: %s has no heading #%s (%v)", name, to, anchor, err)
				}
			}
		}
	})
}

// TestOneRationale: reasons are looked for in one place.
func TestOneRationale(t *testing.T) {
	eachFile(t, func(name string, _ []byte) {
		if path.Base(name) == "RATIONALE.md" && name != "docs/RATIONALE.md" {
			t.Errorf("%s: move it into docs/RATIONALE.md, under a heading of its own", name)
		}
	})
}

// TestDocumentsStayShort: nobody reads more pages and words than these. The two pages about what protocols and clients make of
// keys are 1,000 of the words.
func TestDocumentsStayShort(t *testing.T) {
	const mostPages, mostWords = 24, 35000
	pages, words := 0, 0
	eachFile(t, func(name string, content []byte) {
		if strings.HasPrefix(name, "docs/") && path.Ext(name) == ".md" {
			pages++
			words += len(strings.Fields(string(content)))
		}
	})
	if pages > mostPages || words > mostWords {
		t.Errorf("docs has %d pages with %d words, at most %d with %d are wanted", pages, words, mostPages, mostWords)
	}
}
