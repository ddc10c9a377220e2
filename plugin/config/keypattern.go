package config

import "strconv"

// Pattern is what keys must look like. It matches whole keys in a time that its size and the key's bound.
type Pattern struct {
	text     string // as configured
	elements []element
}

// element is a set of bytes that comes least to most times.
type element struct {
	set         [2]uint64 // bit for each ASCII byte
	least, most int
}

const (
	maxPatternBytes   = 255
	maxKeyBytes       = 255
	keyPatternAllowed = `1 to 255 bytes of plain text, "?" (any byte), "*" (any text), "[a-z0-9]" or "[^a-z]" (one byte of, or not of, a set), each of them with {n} or {n,m} after it, and "\" before any of .+()|^$[]{}?*\ that stands for itself`
)

func (e *element) add(c byte) { e.set[c>>6] |= 1 << (c & 63) }

func (e *element) has(c byte) bool { return c < 128 && e.set[c>>6]&(1<<(c&63)) != 0 }

// any makes e match all bytes of keys.
func (e *element) any() {
	for c := byte(' '); c <= '~'; c++ {
		e.add(c)
	}
}

// parseKeyPattern reads a pattern. It refuses what has another meaning in regular expressions.
func parseKeyPattern(s string) (*Pattern, bool) {
	if s == "" || len(s) > maxPatternBytes {
		return nil, false
	}
	p := &Pattern{text: s}
	for i := 0; i < len(s); {
		c := s[i]
		i++
		e := element{least: 1, most: 1}
		switch c {
		case '?':
			e.any()
		case '*':
			e.any()
			e.least, e.most = 0, maxKeyBytes
		case '[':
			if i = e.class(s, i); i == 0 {
				return nil, false
			}
		case '\\':
			if i == len(s) || s[i] < ' ' || s[i] > '~' {
				return nil, false
			}
			e.add(s[i])
			i++
		case '.', '+', '(', ')', '|', '^', '$', ']', '{', '}':
			return nil, false
		default:
			if c < ' ' || c > '~' {
				return nil, false
			}
			e.add(c)
		}
		if i < len(s) && s[i] == '{' && c != '*' {
			if i = e.repeat(s, i+1); i == 0 {
				return nil, false
			}
		}
		p.elements = append(p.elements, e)
	}
	return p, true
}

// class reads a set after its bracket and returns where it ends; 0: it is wrong.
func (e *element) class(s string, i int) int {
	not := i < len(s) && s[i] == '^'
	if not {
		i++
	}
	var in element
	for begin := i; i < len(s); {
		low, next := classByte(s, i)
		switch {
		case s[i] == ']' && i > begin:
			if e.set = in.set; not {
				e.set = [2]uint64{}
				for c := byte(' '); c <= '~'; c++ {
					if !in.has(c) {
						e.add(c)
					}
				}
			}
			return i + 1
		case s[i] == ']' || next == 0:
			return 0
		}
		high := low
		if next+1 < len(s) && s[next] == '-' && s[next+1] != ']' {
			if high, next = classByte(s, next+1); next == 0 || high < low {
				return 0
			}
		}
		for c := int(low); c <= int(high); c++ {
			in.add(byte(c))
		}
		i = next
	}
	return 0
}

// classByte reads a byte of a set and returns where it ends; 0: it is wrong.
func classByte(s string, i int) (byte, int) {
	if s[i] == '\\' {
		i++
	}
	if i == len(s) || s[i] < ' ' || s[i] > '~' {
		return 0, 0
	}
	return s[i], i + 1
}

// repeat reads n} or n,m} and returns where it ends; 0: it is wrong.
func (e *element) repeat(s string, i int) int {
	number := func() int {
		begin := i
		for i < len(s) && '0' <= s[i] && s[i] <= '9' {
			i++
		}
		n, err := strconv.Atoi(s[begin:i])
		if err != nil || n > maxKeyBytes || strconv.Itoa(n) != s[begin:i] {
			return -1
		}
		return n
	}
	e.least = number()
	if e.most = e.least; i < len(s) && s[i] == ',' {
		i++
		e.most = number()
	}
	if e.least < 0 || e.most < e.least || e.most == 0 || i >= len(s) || s[i] != '}' {
		return 0
	}
	return i + 1
}

// Match reports whether a key of at most 255 bytes matches.
func (p *Pattern) Match(key string) bool {
	if len(key) > maxKeyBytes {
		return false
	}
	// at says for each position whether the elements so far can end there.
	var at [maxKeyBytes + 1]bool
	at[0] = true
	for i := range p.elements {
		e := &p.elements[i]
		var next [maxKeyBytes + 1]bool
		for begin := 0; begin <= len(key); begin++ {
			if !at[begin] {
				continue
			}
			for n := 0; ; n++ {
				if n >= e.least {
					next[begin+n] = true
				}
				if n == e.most || begin+n == len(key) || !e.has(key[begin+n]) {
					break
				}
			}
		}
		at = next
	}
	return at[len(key)]
}
