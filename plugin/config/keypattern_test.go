package config

import (
	"regexp"
	"strings"
	"testing"
)

func TestKeyPatterns(t *testing.T) {
	for pattern, keys := range map[string]map[string]bool{
		`pay_[a-zA-Z0-9]{2,4}`: {"pay_ab": true, "pay_abC4": true, "pay_a": false, "pay_abcde": false, "pay_a-": false, "xpay_ab": false, "": false},
		`a*b?c`:                {"abxc": true, "aXbYbZc": true, "abc": false, "axxbxcc": false, "abbbc": true},
		`[^-]{3}-*`:            {"abc-": true, "abc-x-y": true, "ab--": false},
		`[]a]`:                 nil,
		`[\]\\-]x`:             {"]x": true, `\x`: true, "-x": true, "ax": false},
		`[a-]`:                 {"a": true, "-": true, "b": false},
		`\.\*\{`:               {".*{": true, "aab": false},
		`a{0,2}`:               {"": true, "a": true, "aa": true, "aaa": false},
		`a [^b-z]?`:            {"a  b": true, "a a ": true, "a b ": false, "a-": false},
		`*`:                    {"": true, strings.Repeat("x", 255): true, strings.Repeat("x", 256): false},
		`?{255}`:               {strings.Repeat("x", 255): true, "x": false},
		`?`:                    {"\x80": false, "~": true, " ": true, "\t": false},
		// Refused: other languages, what is not finished, what is too large.
		``: nil, `a.b`: nil, `a+`: nil, `(a)`: nil, `a|b`: nil, `^a`: nil, `a$`: nil, `a]`: nil, `{2}`: nil, `a{`: nil, `a{2`: nil, `a{2,1}`: nil, `a{,2}`: nil,
		`a{256}`: nil, `a{0}`: nil, `a{01}`: nil, `a{0,02}`: nil, `*{2}`: nil, `[`: nil, `[]`: nil, `[a`: nil, `[z-a]`: nil, `[\`: nil, `\`: nil, `é`: nil, strings.Repeat("a", 256): nil,
		`a{99999999999999999999}`: nil,
	} {
		p, ok := parseKeyPattern(pattern)
		if ok != (keys != nil) {
			t.Errorf("%q: accepted %v", pattern, ok)
			continue
		}
		for key, want := range keys {
			if got := p.Match(key); got != want {
				t.Errorf("%q: %.20q matches: %v", pattern, key, got)
			}
		}
	}
}

// FuzzKeyPattern compares patterns with the regular expressions of the same meaning.
func FuzzKeyPattern(f *testing.F) {
	f.Add(`a*[b-d]{2}?`, "axxcb!")
	f.Add(`[^a]{0,3}*\*`, "bb*")
	f.Add(`a [ -b]?`, "a a ")
	f.Fuzz(func(t *testing.T, pattern, key string) {
		p, ok := parseKeyPattern(pattern)
		if !ok || len(key) > 255 {
			return
		}
		var b strings.Builder
		inside := false
		for i := 0; i < len(pattern); i++ {
			switch c := pattern[i]; {
			case c == '\\':
				i++
				b.WriteString(regexp.QuoteMeta(pattern[i : i+1]))
				if pattern[i] == '-' && inside {
					b.WriteString(`\-`)
				}
			case inside && c == '[':
				b.WriteString(`\[`)
			case inside:
				b.WriteByte(c)
				inside = c != ']'
			case c == '[':
				inside = true
				b.WriteByte(c)
			case c == '?':
				b.WriteString(`[ -~]`)
			case c == '*':
				b.WriteString(`[ -~]*`)
			default:
				b.WriteByte(c)
			}
		}
		re, err := regexp.Compile(`\A(?:` + b.String() + `)\z`)
		if err != nil || strings.Contains(pattern, "[^") || strings.Contains(pattern, "[[") || strings.Contains(pattern, `\-`) {
			return // what regular expressions write in another way
		}
		if got, want := p.Match(key), re.MatchString(key); got != want && api7(key) {
			t.Errorf("%q matches %q: %v, as %s: %v", pattern, key, got, re, want)
		}
	})
}

func api7(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
