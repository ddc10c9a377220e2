package ledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
)

func numbered(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprintf("k%04d", i))
	}
	return keys
}

// TestListsAreBounded: lists hold what they are given, and no more than their bounds.
func TestListsAreBounded(t *testing.T) {
	long := make([]string, 100)
	for i := range long {
		long[i] = fmt.Sprint(i, strings.Repeat("x", 1000))
	}
	for _, keys := range [][]string{numbered(1), numbered(256), numbered(1000), long, {"\x00", "\xff"}} {
		var got []string
		for rest := keys; len(rest) > 0; {
			n := FitKeys(rest)
			b := AppendKeys(nil, rest[:n])
			if n > listKeys || len(b) > listBytes+8*listKeys {
				t.Errorf("%d keys in %d bytes", n, len(b))
			}
			list, ok := ParseKeys(b)
			if !ok {
				t.Fatalf("a list of %d keys cannot be read", n)
			}
			for cut := range b[:min(len(b), 100)] {
				if _, ok := ParseKeys(b[:cut]); ok {
					t.Errorf("%d of %d bytes are a list", cut, len(b))
				}
			}
			if _, ok := ParseKeys(append(b, 0)); ok {
				t.Error("a list with a byte too many is one")
			}
			got, rest = append(got, list...), rest[n:]
		}
		if !slices.Equal(got, keys) {
			t.Errorf("lists have %d keys, want %d", len(got), len(keys))
		}
	}
	for _, key := range []string{"", strings.Repeat("x", store.MaxKeyBytes+1)} {
		if _, ok := ParseKeys(AppendKeys(nil, []string{"a", key})); ok {
			t.Errorf("a key of %d bytes is in a list", len(key))
		}
	}
}
