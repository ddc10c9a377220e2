package api

import (
	"regexp"
	"strings"
	"testing"
)

var (
	baseA, baseB     = strings.Repeat("ab", 16), strings.Repeat("ac", 16)
	lengthA, lengthB = "00000000", "00000001"
	bodyA, bodyB     = strings.Repeat("01", 16), strings.Repeat("10", 16)
)

// TestSameRequest: parts that both have are compared, and texts of another form only as a whole.
func TestSameRequest(t *testing.T) {
	text := func(parts ...string) string { return strings.Join(parts, ".") }
	full := text(baseA, lengthA, bodyA)
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{full, full, true},
		{full, baseA, true},
		{full, text(baseA, lengthA), true},
		{full, text(baseA, "", bodyA), true},
		{text(baseA, lengthA), text(baseA, "", bodyA), true},
		{baseA, baseA, true},
		{full, "", true},
		{"", "", true},
		{"opaque", "", true},
		{"opaque", "opaque", true},

		{full, text(baseB, lengthA, bodyA), false},
		{full, baseB, false},
		{full, text(baseA, lengthB), false},
		{full, text(baseA, lengthB, bodyA), false},
		{full, text(baseA, lengthA, bodyB), false},
		{full, text(baseA, "", bodyB), false},
		{text(baseA, lengthA), text(baseA, lengthB, bodyA), false},
		{"opaque", "other", false},
		{"opaque", full, false},

		// Other forms.
		{baseA, text(baseA, ""), false},
		{baseA, text(baseA, "", ""), false},
		{baseA, text(baseA, lengthA, ""), false},
		{baseA, text(baseA, "", bodyA, ""), false},
		{baseA, text("", lengthA, bodyA), false},
		{baseA, text(baseA, "0"), false},
		{baseA, text(baseA, lengthA+"0"), false},
		{baseA, text(baseA, lengthA, bodyA[1:]), false},
		{baseA, text(baseA, strings.ToUpper("abcdef01")), false},
		{baseA, text(baseA, "0000000g"), false},
		{baseA, text(baseA, "0000000/"), false},
		{text(baseA, ""), text(baseA, "", ""), false},
		{baseA + ".x", baseA + ".y", false},
	} {
		if SameRequest(c.a, c.b) != c.same || SameRequest(c.b, c.a) != c.same {
			t.Errorf("%q and %q are the same: %v, want %v", c.a, c.b, !c.same, c.same)
		}
	}
	for _, f := range []string{full, baseA} {
		if ValidateFingerprint(f) != nil {
			t.Errorf("%q is not a valid fingerprint", f)
		}
	}
}

// FuzzSameRequest: the comparison is the one that a regular expression makes.
func FuzzSameRequest(f *testing.F) {
	f.Add(baseA+"."+lengthA+"."+bodyA, baseA+".."+bodyB)
	f.Add(baseA, baseA+".")
	f.Add("a.b", "a.c")
	form := regexp.MustCompile(`^([0-9a-f]{32})(?:\.([0-9a-f]{8})|(?:\.([0-9a-f]{8})?\.([0-9a-f]{32})))?$`)
	f.Fuzz(func(t *testing.T, a, b string) {
		want := a == b || a == "" || b == ""
		if x, y := form.FindStringSubmatch(a), form.FindStringSubmatch(b); x != nil && y != nil {
			want = x[1] == y[1] && sameOrMissing(x[2]+x[3], y[2]+y[3]) && sameOrMissing(x[4], y[4])
		}
		if SameRequest(a, b) != want || SameRequest(b, a) != want {
			t.Errorf("%q and %q are the same: %v, want %v", a, b, SameRequest(a, b), want)
		}
	})
}
