package api

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

const (
	// maxOpenMembers bounds the members of the objects that are open at the same time.
	maxOpenMembers = 1 << 16
	// canonicalRoom is how much longer than its body a canonical form may be, since 1E20 has 21 digits
	// there. A longer one does not count as JSON.
	canonicalRoom = 4096
)

// canonical writes a JSON body in the form of RFC 8785 (JCS), in one pass: it writes each member of an object
// in the order in which it comes, and puts them into order at the object's end. It differs from RFC 8785
// in one way. A whole number that a double cannot hold keeps its digits, so two
// such numbers never become the same.
type canonical struct {
	src      string
	pos      int
	limit    int // of out
	out, tmp []byte
	members  []member // of all open objects
	include  [][]string
	exclude  [][]string
}

// member is a member of an open object; its text is out[start:end], empty if it does not count.
type member struct {
	name       string
	start, end int
}

// place says which of the paths may lead further from a value, one bit each. counts: the value is in what
// counts as a whole.
type place struct {
	include, exclude uint32
	counts           bool
}

// AppendCanonical appends the canonical form of the parts of a body that count: without the paths of exclude, and only
// those of include unless it is empty. If only parts of an array are included, their positions stand before them. The
// body must be JSON, and it is read with recursion, so the caller must bound its depth. False: it has no canonical form,
// because it is not I-JSON (RFC 7493: text that is not Unicode, repeated names, numbers beyond a double), or exceeds the
// limits above. A list has at most 32 paths.
func AppendCanonical(out, body []byte, include, exclude [][]string) ([]byte, bool) {
	if !utf8.Valid(body) {
		return out, false
	}
	c := canonical{
		// body is not changed while src is in use.
		src: unsafe.String(unsafe.SliceData(body), len(body)), limit: len(out) + 2*len(body) + canonicalRoom,
		out: out, include: include, exclude: exclude,
	}
	all := place{include: 1<<len(include) - 1, exclude: 1<<len(exclude) - 1, counts: len(include) == 0}
	ok := c.value(0, all)
	return c.out, ok
}

func (c *canonical) skipSpace() {
	for c.pos < len(c.src) && c.src[c.pos] <= ' ' {
		c.pos++
	}
}

// value writes the value at pos. The text is known to be JSON. False: it has no canonical form.
func (c *canonical) value(depth int, at place) bool {
	c.skipSpace()
	start := c.pos
	switch c.src[start] {
	case '{':
		return c.object(depth, at)
	case '[':
		return c.array(depth, at)
	case '"':
		s, ok := c.text()
		if ok && at.counts {
			c.out = appendText(c.out, s)
		}
		return ok && len(c.out) <= c.limit
	}
	for c.pos < len(c.src) && c.src[c.pos] > ' ' && c.src[c.pos] != ',' && c.src[c.pos] != ']' && c.src[c.pos] != '}' {
		c.pos++
	}
	literal, ok := c.src[start:c.pos], true
	if b := literal[0]; b == '-' || '0' <= b && b <= '9' {
		n := len(c.out)
		c.out, ok = appendNumber(c.out, literal)
		if !at.counts {
			c.out = c.out[:n]
		}
	} else if at.counts {
		c.out = append(c.out, literal...)
	}
	return ok && len(c.out) <= c.limit
}

// child returns the place of a member or element, and whether it is excluded.
func (c *canonical) child(at place, depth int, name string) (next place, excluded bool) {
	next.counts = at.counts
	for i, path := range c.include {
		if at.include&(1<<i) != 0 && depth < len(path) && path[depth] == name {
			next.include |= 1 << i
			next.counts = next.counts || len(path) == depth+1
		}
	}
	for i, path := range c.exclude {
		if at.exclude&(1<<i) != 0 && depth < len(path) && path[depth] == name {
			next.exclude |= 1 << i
			excluded = excluded || len(path) == depth+1
		}
	}
	return next, excluded
}

func (c *canonical) array(depth int, at place) bool {
	begin, empty := len(c.out), true
	c.out = append(c.out, '[')
	c.pos++
	for i := 0; ; i++ {
		c.skipSpace()
		if c.src[c.pos] == ']' {
			break
		}
		next, excluded := at, false
		if at.include|at.exclude != 0 {
			next, excluded = c.child(at, depth, strconv.Itoa(i))
		}
		start := len(c.out)
		if !empty {
			c.out = append(c.out, ',')
		}
		if !at.counts {
			c.out = append(strconv.AppendInt(c.out, int64(i), 10), ':')
		}
		text := len(c.out)
		if !c.value(depth+1, next) {
			return false
		}
		if excluded || len(c.out) == text {
			c.out = c.out[:start]
		} else {
			empty = false
		}
		c.skipSpace()
		if c.src[c.pos] == ',' {
			c.pos++
		}
	}
	c.pos++
	c.out = append(c.out, ']')
	if empty && !at.counts {
		c.out = c.out[:begin]
	}
	return true
}

func (c *canonical) object(depth int, at place) bool {
	begin, base := len(c.out), len(c.members)
	c.pos++
	for {
		c.skipSpace()
		if c.src[c.pos] == '}' {
			break
		}
		if c.src[c.pos] == ',' {
			c.pos++
			continue
		}
		name, ok := c.text()
		if !ok || len(c.members) == maxOpenMembers {
			return false
		}
		c.skipSpace()
		c.pos++ // the colon
		next, excluded := at, false
		if at.include|at.exclude != 0 {
			next, excluded = c.child(at, depth, name)
		}
		start := len(c.out)
		c.out = append(appendText(c.out, name), ':')
		text := len(c.out)
		if !c.value(depth+1, next) {
			return false
		}
		if excluded || len(c.out) == text {
			c.out = c.out[:start]
		}
		c.members = append(c.members, member{name, start, len(c.out)})
	}
	c.pos++
	return c.sort(begin, base, at.counts)
}

// sort puts the members since base into order; their text begins at begin. False: a name is repeated.
func (c *canonical) sort(begin, base int, counts bool) bool {
	members := c.members[base:]
	slices.SortFunc(members, func(a, b member) int { return compareUTF16(a.name, b.name) })
	c.tmp = append(c.tmp[:0], '{')
	for i, m := range members {
		if i > 0 && m.name == members[i-1].name {
			return false
		}
		if m.start == m.end {
			continue
		}
		if len(c.tmp) > 1 {
			c.tmp = append(c.tmp, ',')
		}
		c.tmp = append(c.tmp, c.out[m.start:m.end]...)
	}
	c.members = c.members[:base]
	c.out = c.out[:begin]
	if counts || len(c.tmp) > 1 {
		c.out = append(append(c.out, c.tmp...), '}')
	}
	return len(c.out) <= c.limit
}

// compareUTF16 compares UTF-8 texts by their UTF-16 code units. The order is that of the bytes except for
// characters beyond U+FFFF: their surrogates come before U+E000 to U+FFFF.
func compareUTF16(a, b string) int {
	for i := 0; i < len(a) && i < len(b); i++ {
		x, y := a[i], b[i]
		switch {
		case x == y:
			continue
		case x|1 == 0xef && y >= 0xf0:
			return 1
		case y|1 == 0xef && x >= 0xf0:
			return -1
		}
		return int(x) - int(y)
	}
	return len(a) - len(b)
}

// text reads the string at pos. False: it is not Unicode.
func (c *canonical) text() (string, bool) {
	c.pos++
	start := c.pos
	for c.src[c.pos] != '"' && c.src[c.pos] != '\\' {
		c.pos++
	}
	if c.src[c.pos] == '"' {
		c.pos++
		return c.src[start : c.pos-1], true
	}
	b := []byte(c.src[start:c.pos])
	for c.src[c.pos] != '"' {
		if c.src[c.pos] != '\\' {
			b = append(b, c.src[c.pos])
			c.pos++
			continue
		}
		e := c.src[c.pos+1]
		c.pos += 2
		if e != 'u' {
			if i := strings.IndexByte("bfnrt", e); i >= 0 {
				e = "\b\f\n\r\t"[i]
			}
			b = append(b, e)
			continue
		}
		r := c.unit()
		if utf16.IsSurrogate(r) {
			low := rune(-1)
			if strings.HasPrefix(c.src[c.pos:], `\u`) {
				c.pos += 2
				low = c.unit()
			}
			if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
				return "", false
			}
		}
		b = utf8.AppendRune(b, r)
	}
	c.pos++
	return string(b), true
}

// unit reads four hex digits.
func (c *canonical) unit() rune {
	n, _ := strconv.ParseUint(c.src[c.pos:c.pos+4], 16, 16)
	c.pos += 4
	return rune(n)
}

// appendText appends a JSON string with no more escapes than it needs.
func appendText(out []byte, s string) []byte {
	out = append(out, '"')
	plain := 0
	for i := 0; i < len(s); i++ {
		b := s[i]
		if b >= ' ' && b != '"' && b != '\\' {
			continue
		}
		out = append(append(out, s[plain:i]...), '\\')
		plain = i + 1
		if at := strings.IndexByte("\b\f\n\r\t\"\\", b); at >= 0 {
			out = append(out, `bfnrt"\`[at])
			continue
		}
		const hex = "0123456789abcdef"
		out = append(out, 'u', '0', '0', hex[b>>4], hex[b&15])
	}
	return append(append(out, s[plain:]...), '"')
}

// appendNumber appends a number as ECMAScript writes the double. A whole number that a double does not hold exactly
// keeps its digits. False: it is beyond a double.
func appendNumber(out []byte, literal string) ([]byte, bool) {
	whole := !strings.ContainsAny(literal, ".eE")
	if whole && len(literal) <= 15 && literal != "-0" {
		return append(out, literal...), true
	}
	f, err := strconv.ParseFloat(literal, 64)
	if whole && (err != nil || f != 0 && strconv.FormatFloat(f, 'f', -1, 64) != literal) {
		return append(out, literal...), true
	}
	if err != nil {
		return out, false
	}
	abs := math.Abs(f)
	switch {
	case f == 0:
		return append(out, '0'), true // also for -0
	case abs >= 1e-6 && abs < 1e21:
		return strconv.AppendFloat(out, f, 'f', -1, 64), true
	}
	out = strconv.AppendFloat(out, f, 'e', -1, 64)
	// ECMAScript writes e-7, not e-07.
	if n := len(out); n >= 4 && out[n-4] == 'e' && out[n-2] == '0' {
		out = append(out[:n-2], out[n-1])
	}
	return out, true
}
