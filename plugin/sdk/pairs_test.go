package sdk

import (
	"reflect"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
)

// Headers are encoded and decoded as hosts do it.
func TestPairsAreEncodedAsHostsDo(t *testing.T) {
	for _, headers := range [][][2]string{
		{},
		{{"a", "1"}},
		{{":status", "200"}, {"empty", ""}, {"", "nameless"}, {"a", "1"}, {"a", "2"}, {"long", strings.Repeat("x", 70_000)}},
	} {
		b := appendPairs([]byte("before"), headers)[len("before"):]
		var host [][2]string
		for _, h := range hostsim.UnmarshalPairs(b) {
			host = append(host, h)
		}
		if len(headers) > 0 && !reflect.DeepEqual(host, headers) {
			t.Errorf("a host reads %.100q for %.100q", host, headers)
		}
		got := parsePairs([][2]string{{"kept", ""}}, b)
		if !reflect.DeepEqual(got, append([][2]string{{"kept", ""}}, headers...)) {
			t.Errorf("%.100q became %.100q", headers, got)
		}
	}
}

// TestMalformedPairs: no input makes parsePairs read outside of it.
func TestMalformedPairs(t *testing.T) {
	whole := appendPairs(nil, [][2]string{{"name", "value"}, {"other", "one"}})
	for n := range whole {
		if got := parsePairs(nil, whole[:n]); len(got) != 0 {
			t.Errorf("%d of %d bytes give %q", n, len(whole), got)
		}
	}
	for _, b := range []string{"\xff\xff\xff\xff", "\x01\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xffxx", "\x01\x00\x00\x00\x00\x00\x00\x80\x00\x00\x00\x80xxxx"} {
		if got := parsePairs(nil, []byte(b)); len(got) != 0 {
			t.Errorf("%q gives %q", b, got)
		}
	}
}

func FuzzPairs(f *testing.F) {
	f.Add(appendPairs(nil, [][2]string{{"name", "value"}, {"other", "one"}}))
	f.Add([]byte("\x02\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		headers := parsePairs(nil, b)
		if again := parsePairs(nil, appendPairs(nil, headers)); !reflect.DeepEqual(again, headers) {
			t.Errorf("%q became %q", headers, again)
		}
	})
}
