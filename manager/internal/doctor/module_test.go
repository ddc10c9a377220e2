package doctor

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCapabilitiesArePublished: the list is that of the published configuration, which a test compares with the module.
func TestCapabilitiesArePublished(t *testing.T) {
	b, err := os.ReadFile("../../../envoy/capabilities.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(b), "allowed_capabilities:")
	list, _, _ = strings.Cut(list, "vm_config:")
	var published []string
	for _, m := range regexp.MustCompile(`(\w+): \{\}`).FindAllStringSubmatch(list, -1) {
		published = append(published, m[1])
	}
	slices.Sort(published)
	if own := slices.Sorted(slices.Values(capabilities)); !slices.Equal(own, published) {
		t.Errorf("own: %v\npublished: %v", own, published)
	}
}
