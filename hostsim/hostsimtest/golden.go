package hostsimtest

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write golden files instead of comparing with them")

// Golden compares a transcript with testdata/<name>.golden, line by line; with -update
// it writes the file.
func Golden(tb testing.TB, name, got string) {
	tb.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			tb.Fatal(err)
		}
		return
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		tb.Fatalf("%v (run the test with -update to write it)", err)
	}
	want, have := strings.Split(string(raw), "\n"), strings.Split(got, "\n")
	for i := range max(len(want), len(have)) {
		w, h := "(nothing)", "(nothing)"
		if i < len(want) {
			w = want[i]
		}
		if i < len(have) {
			h = have[i]
		}
		if w != h {
			tb.Errorf("%s, line %d\n got: %s\nwant: %s\n(run the test with -update to accept the new transcript)", path, i+1, h, w)
			return
		}
	}
}
