package api

import "strings"

// Digits of a fingerprint's parts; see SameRequest.
const (
	printBaseDigits   = 32
	printLengthDigits = 8
	printBodyDigits   = 32
)

// SameRequest reports whether two fingerprints may be of the same request. Two gates may know more or less about a
// request: a gate that decides before the body comes knows no digest of it, and only a declared length. So a gate's
// fingerprint has parts, and a part that one of the two lacks is not compared:
//
//	fingerprint = base [ "." length ] | base "." [ length ] "." body
//	base        = 32 digits   of all but the body
//	length      = 8 digits    of the body's length
//	body        = 32 digits   of the body
//	digit       = "0" to "9" or "a" to "f"
//
// If one of the two has another form, they are compared byte by byte. An empty fingerprint is not compared.
func SameRequest(a, b string) bool {
	if a == b || a == "" || b == "" {
		return true
	}
	x, ok := partsOf(a)
	y, also := partsOf(b)
	return ok && also && x.base == y.base && sameOrMissing(x.length, y.length) && sameOrMissing(x.body, y.body)
}

type printParts struct{ base, length, body string }

// partsOf takes a fingerprint apart. False: it has another form.
func partsOf(s string) (p printParts, ok bool) {
	base, rest, more := strings.Cut(s, ".")
	length, body, full := strings.Cut(rest, ".")
	return printParts{base, length, body}, digits(base, printBaseDigits) &&
		(digits(length, printLengthDigits) || length == "" && full == more) && (!full || digits(body, printBodyDigits))
}

// digits reports whether s has n hexadecimal digits, and nothing else.
func digits(s string, n int) bool {
	if len(s) != n {
		return false
	}
	for i := 0; i < n; i++ {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func sameOrMissing(a, b string) bool { return a == "" || b == "" || a == b }
