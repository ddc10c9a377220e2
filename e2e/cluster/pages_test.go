package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var fence = regexp.MustCompile("(?m)^( *)```(sh|yaml)\n((?:.*\n)*?) *```$")

// page has the command blocks and the YAML of a page in docs.
type page struct {
	name     string
	text     string
	commands []string
	values   []string
}

func readPage(t *testing.T, name string) page {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	p := page{name: name, text: string(text)}
	for _, m := range fence.FindAllStringSubmatch(string(text), -1) {
		body := strings.ReplaceAll("\n"+m[3], "\n"+m[1], "\n")[1:]
		if m[2] == "sh" {
			p.commands = append(p.commands, body)
		} else {
			p.values = append(p.values, body)
		}
	}
	return p
}

// block returns the block that begins so. examples/run/pages_test.go has the same beginnings, and looks for them here.
func (p page) block(t *testing.T, begin string) string {
	t.Helper()
	return p.one(t, p.commands, func(s string) bool { return strings.HasPrefix(s, begin) }, begin)
}

// yaml returns the only YAML block with that text.
func (p page) yaml(t *testing.T, has string) string {
	t.Helper()
	return p.one(t, p.values, func(s string) bool { return strings.Contains(s, has) }, has)
}

func (p page) one(t *testing.T, blocks []string, is func(string) bool, what string) (found string) {
	t.Helper()
	for _, b := range blocks {
		if is(b) {
			if found != "" {
				t.Fatalf("%s has two blocks with %q", p.name, what)
			}
			found = b
		}
	}
	if found == "" {
		t.Fatalf("%s has no block with %q", p.name, what)
	}
	return found
}

// shard is Istio's name for the cluster of the n-th manager.
func shard(n int) string {
	return fmt.Sprintf("outbound|8090||oncegate-manager-%d.oncegate-manager.oncegate.svc.cluster.local", n)
}
