package sdk

import "testing"

func TestVariable(t *testing.T) {
	const block = "A=1\x00EMPTY=\x00EQUALS=a=b\x00none\x00AB=2\x00LAST=3"
	for name, want := range map[string]string{"A": "1", "EMPTY": "", "EQUALS": "a=b", "AB": "2", "LAST": "3"} {
		if got, ok := variable([]byte(block), name); got != want || !ok {
			t.Errorf("%s: %q, %v; want %q", name, got, ok, want)
		}
	}
	for _, name := range []string{"", "none", "B", "a", "A=1", "1", "LAS"} {
		if got, ok := variable([]byte(block), name); ok {
			t.Errorf("%s: %q, want none", name, got)
		}
	}
	if got, ok := variable(nil, "A"); ok {
		t.Errorf("without an environment: %q", got)
	}
}
