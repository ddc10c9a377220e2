package gate

import "testing"

func TestAcceptEncodingDecidesTheReplay(t *testing.T) {
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
		if got := accepts(c.accept, c.encoding); got != c.want {
			t.Errorf("%q accepts %q: %v", c.accept, c.encoding, got)
		}
	}
}
