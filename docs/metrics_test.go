package docs

import (
	"regexp"
	"strings"
	"testing"
)

var renamedMetric = regexp.MustCompile("(?m)^\\| `(oncegate_[a-z_]+)` \\| `(oncegate_[a-z_]+)` \\|$")

// Nothing uses a metric's name of before the change that CHANGELOG tells.
func TestOldMetricNamesAreGone(t *testing.T) {
	var old []string
	eachFile(t, func(name string, content []byte) {
		if name == "CHANGELOG.md" {
			for _, row := range renamedMetric.FindAllStringSubmatch(string(content), -1) {
				old = append(old, row[1])
			}
		}
	})
	if len(old) < 40 {
		t.Fatalf("CHANGELOG tells of %d names", len(old))
	}
	gone := regexp.MustCompile(`\b(?:` + strings.Join(old, "|") + `)(?:_count|_sum|_bucket)?\b`)
	eachFile(t, func(name string, content []byte) {
		if name == "CHANGELOG.md" || name == "CONTRIBUTING.md" { // which show how names got better
			return
		}
		if found := gone.Find(content); found != nil {
			t.Errorf("%s: %s has another name now, see CHANGELOG.md", name, found)
		}
	})
}
