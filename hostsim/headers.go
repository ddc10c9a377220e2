package hostsim

import (
	"maps"
	"net/http"
	"slices"
	"strings"
)

// Header is one name/value pair. Names are always lower case, as in Envoy. Pseudo headers (":method", ":path",
// ":authority", ":scheme", ":status") are ordinary entries.
type Header [2]string

// Headers is an ordered header (or trailer) map that may contain a name several times. The zero value is an empty map.
type Headers []Header

// H builds Headers from alternating names and values. It panics when the number
// of arguments is odd: that is a mistake in the calling code.
func H(nameValues ...string) Headers {
	if len(nameValues)%2 != 0 {
		panic("hostsim: H needs pairs of name and value")
	}
	h := make(Headers, 0, len(nameValues)/2)
	for i := 0; i < len(nameValues); i += 2 {
		h = append(h, Header{strings.ToLower(nameValues[i]), nameValues[i+1]})
	}
	return h
}

// HeadersOf makes Headers of those of net/http, which does not keep the order of the names: they come sorted.
func HeadersOf(all http.Header) Headers {
	h := make(Headers, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, v := range all[name] {
			h = append(h, Header{strings.ToLower(name), v})
		}
	}
	return h
}

// Lookup returns the first value of name and whether name is present, like Envoy's host functions. Values returns all
// values.
func (h Headers) Lookup(name string) (string, bool) {
	for i := range h {
		if h[i][0] == name {
			return h[i][1], true
		}
	}
	return "", false
}

// Get returns the value of name as Lookup does, or "" when it is absent.
func (h Headers) Get(name string) string {
	v, _ := h.Lookup(name)
	return v
}

// Has tells whether name is present.
func (h Headers) Has(name string) bool {
	_, ok := h.Lookup(name)
	return ok
}

// Values returns every value of name in order; nil when there is none.
func (h Headers) Values(name string) []string {
	var vs []string
	for i := range h {
		if h[i][0] == name {
			vs = append(vs, h[i][1])
		}
	}
	return vs
}

// Add appends one pair.
func (h *Headers) Add(name, value string) {
	*h = append(*h, Header{name, value})
}

// Set replaces all values of name by one, at the place of the first, or appends
// it when name is absent.
func (h *Headers) Set(name, value string) {
	out, done := (*h)[:0], false
	for _, p := range *h {
		if p[0] == name {
			if done {
				continue
			}
			p[1], done = value, true
		}
		out = append(out, p)
	}
	if !done {
		out = append(out, Header{name, value})
	}
	*h = out
}

// Del removes every value of name.
func (h *Headers) Del(name string) {
	*h = slices.DeleteFunc(*h, func(p Header) bool { return p[0] == name })
}

// Clone returns a copy that shares no pairs with h.
func (h Headers) Clone() Headers { return slices.Clone(h) }

// Bytes is the sum of the lengths of all names and values.
func (h Headers) Bytes() int {
	n := 0
	for i := range h {
		n += len(h[i][0]) + len(h[i][1])
	}
	return n
}
