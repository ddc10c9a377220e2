package main

import (
	"bytes"
	"strings"
	"testing"
)

// named is a module with a name section, which names the module, then two functions.
func named(first, second string) []byte {
	functions := append(append(append(append(uleb(2), 0), name(first)...), 1), name(second)...)
	content := append(append(name("name"), 0, 2, 1, 'm', 1), append(uleb(len(functions)), functions...)...)
	module := append(testModule{exports: goodExports}.encode(), 0)
	return append(append(append(module, uleb(len(content))...), content...), 0, 3, 1, 'z', 0)
}

func TestShortenNames(t *testing.T) {
	long := "interface:{A:func:{named:a/b.C{}}{},B:func:{}{}}.B$invoke"
	got := shortenNames(named(long, "(*a/b.C).D"))
	if want := named("interface.B$invoke", "(*a/b.C).D"); !bytes.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := Check(t.Context(), got, Rules{}); err != nil {
		t.Error(err)
	}
	// A name of more than 127 bytes has a longer number before it.
	if got, want := shortenNames(named(strings.Replace(long, "{}", strings.Repeat("x", 300), 1), "d")), named("interface.B$invoke", "d"); !bytes.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What has no names, or is cut off anywhere, stays as it is, or loses nothing but names.
func TestShortenNamesOfBrokenModules(t *testing.T) {
	whole := named("interface:{A:func:{}{}}.A$invoke", "b")
	plain := testModule{exports: goodExports}.encode()
	for _, module := range [][]byte{nil, plain, named("a", "b")} {
		if got := shortenNames(module); !bytes.Equal(got, module) {
			t.Errorf("got %q, want %q", got, module)
		}
	}
	for n := range whole {
		if got := shortenNames(bytes.Clone(whole[:n])); len(got) > n {
			t.Errorf("%d bytes of %d grew to %d", n, len(whole), len(got))
		}
	}
}
