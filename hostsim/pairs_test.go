package hostsim_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
)

func TestPairsAreEncodedAsTheABISays(t *testing.T) {
	h := hostsim.H("a", "1", "bc", "")
	want := []byte("\x02\x00\x00\x00" + "\x01\x00\x00\x00" + "\x01\x00\x00\x00" + "\x02\x00\x00\x00" + "\x00\x00\x00\x00" + "a\x001\x00" + "bc\x00\x00")
	if got := hostsim.MarshalPairs(h); !bytes.Equal(got, want) {
		t.Errorf("serialized form is %q, want %q", got, want)
	}
	if got := hostsim.UnmarshalPairs(want); !slices.Equal(got, h) {
		t.Errorf("read as %q, want %q", got, h)
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
	eachSeed(t, func(r *rand.Rand) {
		h := make(hostsim.Headers, r.IntN(21))
		for i := range h {
			name, value := make([]byte, r.IntN(13)), make([]rune, r.IntN(20))
			for j := range name {
				name[j] = pick(r, []byte("abcxyz0129:-"))
			}
			for j := range value {
				value[j] = pick(r, []rune{0, 'a', ' ', '\n', '"', 0x7f, 'é', 0xfffd, 0x1f600, rune(r.IntN(0xd800))})
			}
			h[i] = hostsim.Header{string(name), string(value)}
		}
		if got := hostsim.UnmarshalPairs(hostsim.MarshalPairs(h)); !slices.Equal(got, h) {
			t.Fatalf("read as %q, want %q", got, h)
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
	want(t, "headers", fmt.Sprint(h), "[[a 9] [c 4]]")
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
