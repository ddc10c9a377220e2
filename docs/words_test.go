package docs

import (
	"bufio"
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// root is the repository, seen from this package.
const root = ".."

// rule is a line of words.txt.
type rule struct {
	pattern string
	match   *regexp.Regexp
	instead string
}

// whoSentence finds sentences whose subject is "Who" and that are no questions.
var whoSentence = rule{
	pattern: `"Who ..." as a subject`,
	match:   regexp.MustCompile(`(?:^|\n|[.;:]\s+)Who\s[^?.]*\.`),
	instead: "name the subject: A caller that ...",
}

func readRules(t *testing.T) []rule {
	t.Helper()
	f, err := os.Open("words.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rules := []rule{whoSentence}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		pattern, instead, ok := strings.Cut(line, " => ")
		if !ok {
			t.Fatalf("words.txt: %q has no \" => \"", line)
		}
		re, err := regexp.Compile(`(?i)\b(?:` + strings.ReplaceAll(pattern, " ", `\s+`) + `)\b`)
		if err != nil {
			t.Fatalf("words.txt: %q: %v", pattern, err)
		}
		rules = append(rules, rule{pattern, re, instead})
	}
	return rules
}

// TestNoForbiddenWords: what people read has none of the words of words.txt.
func TestNoForbiddenWords(t *testing.T) {
	rules := readRules(t)
	eachFile(t, func(name string, content []byte) {
		for _, f := range findWords(rules, prose(name, content)) {
			t.Errorf("%s:%d: %q: write instead: %s", name, f.line, f.found, f.instead)
		}
	})
}

// TestForbiddenWordsAreFound: each kind of text is looked at, and code is not.
func TestForbiddenWordsAreFound(t *testing.T) {
	rules := readRules(t)
	for _, c := range []struct {
		file, text string
		line       int // of the finding, 0 for none
	}{
		{"a.go", "package a\n\n// f waits for\n// ever.\nfunc f() {}\n", 3},
		{"a.go", "package a\n\n// Who waits is told.\n", 3},
		{"a.go", "package a\n\n// # Who waits\n//\n// Who waits? Callers.\n", 0},
		{"a.go", "package a\n\nvar x = \"one octet\" // fine\n", 3},
		{"a.go", "package a\n\nvar x = \"application/octet-stream\"\n", 0},
		{"a.go", "package a\n\nvar octet = `json:\"x\"`\n", 0},
		{"a_test.go", "package a\n\nvar x = \"one octet\"\n", 0},
		{"a_test.go", "package a\n\n// one octet\n", 3},
		{"a.md", "It shall\nbe.\n", 1},
		{"a.md", "Write `must`, not `shall`.\n", 0},
		{"a.ts", "/** One octet. */\nlet x = 1;\n", 1},
		{"a.yaml", "octet: 1 # the first octet\n", 1},
		{"a.yaml", "octet: 1\n", 0},
		{"Makefile", "x: ## waits in vain\n", 1},
	} {
		found := findWords(rules, prose(c.file, []byte(c.text)))
		switch {
		case c.line == 0 && len(found) > 0:
			t.Errorf("%s %q: found %q", c.file, c.text, found[0].found)
		case c.line != 0 && (len(found) != 1 || found[0].line != c.line):
			t.Errorf("%s %q: found %+v, want one in line %d", c.file, c.text, found, c.line)
		}
	}
}

type finding struct {
	line           int
	found, instead string
}

func findWords(rules []rule, text string) []finding {
	var all []finding
	text = strings.ReplaceAll(text, "octet-stream", "") // a media type
	for _, r := range rules {
		for _, at := range r.match.FindAllStringIndex(text, -1) {
			start := at[0] + len(text[at[0]:at[1]]) - len(strings.TrimLeft(text[at[0]:at[1]], "\n.;: "))
			all = append(all, finding{
				line:    1 + strings.Count(text[:start], "\n"),
				found:   strings.Join(strings.Fields(fmt.Sprintf("%.60s", text[start:at[1]])), " "),
				instead: r.instead,
			})
		}
	}
	return all
}

// codeSpan is a name in a document, not prose.
var codeSpan = regexp.MustCompile("`[^`\n]*`")

// prose returns what people read of a file, each line in its place.
func prose(name string, content []byte) string {
	switch {
	case strings.HasSuffix(name, ".go"):
		return goProse(content, !strings.HasSuffix(name, "_test.go"))
	case strings.HasSuffix(name, ".md"):
		return codeSpan.ReplaceAllString(string(content), "")
	case strings.HasSuffix(name, ".ts"): // whose code has none of the words
		return string(content)
	}
	lines := strings.Split(string(content), "\n")
	for i, line := range lines { // YAML, shell, make
		_, comment, _ := strings.Cut(line, "#")
		lines[i] = strings.TrimLeft(comment, "# ")
	}
	return strings.Join(lines, "\n")
}

// goProse returns comments and, if wanted, string literals.
func goProse(src []byte, literals bool) string {
	fset := token.NewFileSet()
	file := fset.AddFile("", fset.Base(), len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, scanner.ScanComments)
	lines := make([]string, 1+strings.Count(string(src), "\n"))
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return strings.Join(lines, "\n")
		}
		switch {
		case tok == token.COMMENT:
			lit = strings.TrimSuffix(strings.TrimPrefix(lit, "/*"), "*/")
		case tok == token.STRING && literals:
		default:
			continue
		}
		first := file.Line(pos) - 1
		for i, line := range strings.Split(lit, "\n") {
			line = strings.TrimPrefix(line, "//")
			if i+first < len(lines) {
				lines[i+first] += strings.TrimSpace(line) + " "
			}
		}
	}
}

// eachFile calls fn with every file that people read or that refers to other files. Names are relative to the root.
func eachFile(t *testing.T, fn func(name string, content []byte)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		base := filepath.Base(name)
		if d.IsDir() {
			if name == "build" || base == ".git" {
				return fs.SkipDir
			}
			return nil
		}
		switch filepath.Ext(name) {
		case ".go", ".md", ".yaml", ".sh", ".ts":
		default:
			if base != "Makefile" {
				return nil
			}
		}
		if name == filepath.Join("docs", "words_test.go") { // has the words as its cases
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fn(filepath.ToSlash(name), content)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
