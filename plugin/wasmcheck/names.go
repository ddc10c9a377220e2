package main

import (
	"bytes"
	"encoding/binary"
	"strings"
)

// TinyGo names each method that is called through an interface after all methods of that interface. In the gate these names
// are a tenth of the module. Backtraces of a trap need only the method's own name.

// shortenNames returns the module with short names of such methods. It returns a module as it is if it has no
// names, or none that can be read.
func shortenNames(module []byte) []byte {
	const header = 8
	for at := header; at < len(module); {
		body, next, ok := sized(module, at+1)
		if !ok {
			return module
		}
		if content, found := bytes.CutPrefix(body, []byte("\x04name")); module[at] == 0 && found {
			short, ok := shortenSection(content)
			if !ok {
				return module
			}
			return append(appendSized(append(bytes.Clone(module[:at]), 0), append([]byte("\x04name"), short...)), module[next:]...)
		}
		at = next
	}
	return module
}

// shortenSection shortens the functions' names in the content of a name section. Their subsection has the number 1.
func shortenSection(content []byte) (short []byte, ok bool) {
	for at := 0; at < len(content); {
		body, next, ok := sized(content, at+1)
		if !ok {
			return nil, false
		}
		if content[at] == 1 {
			if body, ok = shortenFunctions(body); !ok {
				return nil, false
			}
		}
		short = appendSized(append(short, content[at]), body)
		at = next
	}
	return short, true
}

// shortenFunctions shortens the names in a list of positions and names.
func shortenFunctions(list []byte) (short []byte, ok bool) {
	_, at := binary.Uvarint(list)
	if at <= 0 {
		return nil, false
	}
	short = append(short, list[:at]...)
	for at < len(list) {
		_, n := binary.Uvarint(list[at:])
		if n <= 0 {
			return nil, false
		}
		short = append(short, list[at:at+n]...)
		name, next, ok := sized(list, at+n)
		if !ok {
			return nil, false
		}
		short = appendSized(short, []byte(shortName(string(name))))
		at = next
	}
	return short, true
}

// shortName turns interface:{...}.Method$invoke into interface.Method$invoke.
func shortName(name string) string {
	const kind = "interface"
	if end := strings.LastIndex(name, "}."); end >= 0 && strings.HasPrefix(name, kind+":{") {
		return kind + name[end+1:]
	}
	return name
}

// sized returns the bytes at a position that follow their number, and the position after them.
func sized(b []byte, at int) (body []byte, next int, ok bool) {
	if at > len(b) {
		return nil, 0, false
	}
	size, n := binary.Uvarint(b[at:])
	if n <= 0 || size > uint64(len(b)-at-n) {
		return nil, 0, false
	}
	next = at + n + int(size)
	return b[at+n : next], next, true
}

func appendSized(dst, body []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(body))), body...)
}
