package hostsim_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/oncegate/oncegate/hostsim"
)

func TestPairsAreEncodedAsTheABISays(t *testing.T) {
	h := hostsim.H("a", "1", "bc", "")
	want := []byte("\x02\x00\x00\x00" + "\x01\x00\x00\x00" + "\x01\x00\x00\x00" + "\x02\x00\x00\x00" + "\x00\x00\x00\x00" + "a\x001\x00" + "bc\x00\x00")
	if got := hostsim.MarshalPairs(h); !bytes.Equal(got, want) {
		t.Errorf("serialized form is %q, want %q", got, want)
	}
	if diff := cmp.Diff(h, hostsim.UnmarshalPairs(want)); diff != "" {
		t.Error(diff)
	}
	for name, b := range map[string]string{
		"nothing": "", "short": "\x01\x00\x00", "no sizes": "\x01\x00\x00\x00", "no data": "\x01\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00",
		"no zero byte":    "\x01\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00ab\x00",
		"bytes left over": string(want) + "x",
		"huge length":     "\x01\x00\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00a\x00\x00",
		"huge count":      "\xff\xff\xff\xff",
		"1 MiB and more":  string(hostsim.MarshalPairs(hostsim.H("a", string(make([]byte, 1<<20))))),
	} {
		if got := hostsim.UnmarshalPairs([]byte(b)); len(got) != 0 {
			t.Errorf("%s: %d pairs", name, len(got))
		}
	}
	if got := hostsim.UnmarshalPairs(hostsim.MarshalPairs(hostsim.H("UPPER", "Value"))); got[0] != (hostsim.Header{"upper", "Value"}) {
		t.Errorf("name and value are %v", got[0])
	}
}

func TestPairsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 20).Draw(t, "n")
		h := make(hostsim.Headers, n)
		for i := range h {
			h[i] = hostsim.Header{rapid.StringMatching("[a-z0-9:-]{0,12}").Draw(t, "name"), rapid.String().Draw(t, "value")}
		}
		if diff := cmp.Diff(h, hostsim.UnmarshalPairs(hostsim.MarshalPairs(h))); diff != "" {
			t.Fatal(diff)
		}
	})
}

func FuzzUnmarshalPairs(f *testing.F) {
	f.Add(hostsim.MarshalPairs(hostsim.H(":path", "/", "a", "b")))
	f.Add([]byte("\x01\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xffab"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h := hostsim.UnmarshalPairs(b)
		if len(h) > 0 && len(hostsim.MarshalPairs(h)) != len(b) {
			t.Fatalf("%q was read as %v", b, h)
		}
	})
}

func TestHeaderNamesIgnoreCase(t *testing.T) {
	h := hostsim.H("A", "1", "b", "2", "a", "3")
	want(t, "first value", h.Get("a"), "1")
	want(t, "values", len(h.Values("a")), 2)
	h.Set("a", "9")
	h.Set("c", "4")
	h.Del("b")
	if diff := cmp.Diff(hostsim.H("a", "9", "c", "4"), h); diff != "" {
		t.Error(diff)
	}
	c := h.Clone()
	c.Set("a", "x")
	want(t, "the original", h.Get("a"), "9")
	want(t, "bytes", h.Bytes(), 4)
	want(t, "absent", h.Has("b"), false)
	defer func() {
		if recover() == nil {
			t.Error("an odd number of arguments was accepted")
		}
	}()
	hostsim.H(strings.Fields("a")...)
}
