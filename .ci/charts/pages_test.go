package charts

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/strvals"
)

var (
	yamlBlock = regexp.MustCompile("(?m)^( *)```yaml\n((?:.*\n)*?) *```$")
	// helmCall is a helm command of ours in a block or a code span, on one line, as far as a pipe.
	helmCall = regexp.MustCompile(`helm (?:install|upgrade|template) (?:oncegate charts/oncegate|\.\.\.)([^\n|` + "`" + `]*)`)
	setFlag  = regexp.MustCompile(`--set (\S+)`)
	helmFlag = regexp.MustCompile(`(?:^|\s)(--?[a-z][a-z-]*)`)
)

// TestValuesOfPages: the values that the pages tell a reader to write, and those that their commands set, make manifests that
// Kubernetes accepts.
func TestValuesOfPages(t *testing.T) {
	v, d, blocks, calls := schemas(t), decoder(t), 0, 0
	accept := func(where string, values map[string]any) {
		t.Helper()
		docs := objects(t, values)
		if len(docs) < 3 {
			t.Errorf("%s: only %d objects", where, len(docs))
		}
		for _, doc := range docs {
			check(t, v, d, where, doc)
		}
	}
	for _, page := range []string{"kubernetes.md", "istio.md", "envoy-gateway.md"} {
		b, err := os.ReadFile("../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range yamlBlock.FindAllStringSubmatch(string(b), -1) {
			text := strings.ReplaceAll("\n"+m[2], "\n"+m[1], "\n")
			if strings.Contains(text, "apiVersion:") {
				continue
			}
			values, err := chartutil.ReadValues([]byte(text))
			if err != nil {
				t.Fatalf("%s: %v in\n%s", page, err, text)
			}
			blocks++
			accept(page, values)
		}
		for _, m := range helmCall.FindAllStringSubmatch(string(b), -1) {
			calls++
			values := map[string]any{}
			for _, set := range setFlag.FindAllStringSubmatch(m[1], -1) {
				if err := strvals.ParseInto(set[1], values); err != nil {
					t.Errorf("%s: %s: %v", page, m[0], err)
				}
			}
			for _, f := range helmFlag.FindAllStringSubmatch(m[1], -1) {
				if !slices.Contains([]string{"--set", "--validate", "-f", "-n"}, f[1]) {
					t.Errorf("%s: %s: is %s a flag of helm?", page, m[0], f[1])
				}
			}
			accept(page+": "+m[0], values)
		}
	}
	if blocks < 5 || calls < 6 {
		t.Errorf("%d blocks of values and %d commands were found", blocks, calls)
	}
}
