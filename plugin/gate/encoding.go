package gate

// Whether a client accepts the content coding of a recorded answer. Upstream chose it for the
// first request, and a retry may come from another client.

// accepts reports whether an Accept-Encoding allows all codings of a Content-Encoding. A
// request without the header accepts none: its client may not be able to decode.
func accepts(accept, encoding string) bool {
	all := true
	eachToken(encoding, func(coding string) bool {
		all = acceptsOne(accept, coding)
		return all
	})
	return all
}

func acceptsOne(accept, coding string) bool {
	coding = lower(coding)
	if coding == "identity" {
		return true
	}
	named, rest := -1, -1 // what the list says of the coding and of *; -1: nothing, 0: no, 1: yes
	eachToken(accept, func(element string) bool {
		name, allowed := weigh(element)
		switch {
		case name == coding, "x-"+name == coding, name == "x-"+coding:
			named = allowed
		case name == "*":
			rest = allowed
		}
		return true
	})
	return named == 1 || named < 0 && rest == 1
}

// weigh parses an element of Accept-Encoding. It returns the coding, and 0 when a weight of
// zero refuses it, else 1.
func weigh(element string) (name string, allowed int) {
	end := 0
	for end < len(element) && element[end] != ';' {
		end++
	}
	name, allowed = lower(trim(element[:end])), 1
	if end == len(element) {
		return name, allowed
	}
	q := trim(element[end+1:])
	if len(q) < 3 || q[0]|0x20 != 'q' || q[1] != '=' {
		return name, allowed
	}
	for i := 2; i < len(q); i++ {
		if '1' <= q[i] && q[i] <= '9' {
			return name, allowed
		}
	}
	return name, 0
}

// joined returns all values of a list header as one value.
func joined(headers [][2]string, name string) (list string) {
	for i := range headers {
		if headers[i][0] != name {
			continue
		}
		if list == "" {
			list = headers[i][1]
		} else {
			list += "," + headers[i][1]
		}
	}
	return list
}
