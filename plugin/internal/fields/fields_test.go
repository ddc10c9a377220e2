package fields

import (
	"net/http"
	"testing"
	"time"
)

func TestAccepts(t *testing.T) {
	for _, c := range []struct {
		accept, encoding string
		want             bool
	}{
		{"", "gzip", false}, {"", "identity", true}, {"", "", true},
		{"gzip", "gzip", true}, {"br, GZIP;q=0.5", "gzip", true}, {"gzip", "x-gzip", true}, {"x-gzip", "gzip", true},
		{"br", "gzip", false}, {"gzip;q=0", "gzip", false}, {"gzip; q=0.000", "gzip", false}, {"gzip ;Q=0.001", "gzip", true},
		{"*", "gzip", true}, {"*;q=0", "gzip", false}, {"gzip;q=0, *", "gzip", false}, {"gzip, *;q=0", "gzip", true},
		{"identity", "gzip", false}, {"gzip", "br, gzip", false}, {"gzip, br", "br,gzip", true}, {"gzip;level=1", "gzip", true},
	} {
		if got := Accepts(c.accept, c.encoding); got != c.want {
			t.Errorf("%q accepts %q: %v", c.accept, c.encoding, got)
		}
	}
}

func TestDate(t *testing.T) {
	for _, at := range []time.Time{
		time.Unix(0, 0), time.Unix(1735689599, 999), time.Date(2028, 2, 29, 23, 59, 59, 0, time.UTC), time.Date(2026, 12, 6, 1, 2, 3, 0, time.UTC),
	} {
		if got, want := Date(at.UnixNano()), at.UTC().Format(http.TimeFormat); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestValuesAreParsed(t *testing.T) {
	for in, want := range map[string]int64{"0": 0, "007": 7, "123456789012345678": 123456789012345678} {
		if got, ok := Decimal(in); !ok || got != want {
			t.Errorf("Decimal(%q) = %d, %v", in, got, ok)
		}
	}
	for _, in := range []string{"", "-1", "1 ", "0x1", "1234567890123456789", "١"} {
		if got, ok := Decimal(in); ok {
			t.Errorf("Decimal(%q) = %d", in, got)
		}
	}
	for in, want := range map[string]string{"": "", "Text/Plain; charset=x": "text/plain", " a/b ": "a/b", ";": ""} {
		if got := MediaType(in); got != want {
			t.Errorf("MediaType(%q) = %q", in, got)
		}
	}
	if got := Lower("aBC-Ä"); got != "abc-Ä" {
		t.Errorf("lower = %q", got)
	}
}
