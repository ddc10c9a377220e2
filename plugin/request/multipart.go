package request

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"strings"

	"github.com/oncegate/oncegate/plugin/internal/fields"
)

const (
	// maxBoundary is the length of a boundary that RFC 2046 allows, in bytes.
	maxBoundary = 70
	// delimiterCost is what each line between two parts takes of the limit, whatever the length of its boundary. It is no
	// less than such a line: two line ends, four dashes, the boundary, and maxPadding.
	delimiterCost = maxBoundary + 8 + maxPadding
	// maxPadding bounds the white space that may follow a boundary in its line, in bytes.
	maxPadding = 16
	// maxPartHeaders bounds the headers of one part, in bytes. Text beyond it counts as content.
	maxPartHeaders = 8 << 10
	// headersEnd follows the headers of a part.
	headersEnd = "\r\n\r\n"
	// cutMargin is no less than a boundary's line, in bytes.
	cutMargin = 128
	// writePiece is how much of a body is looked at together, in bytes.
	writePiece = 16 << 10
)

// partsState is where in a multipart body the reader is.
type partsState uint8

const (
	partsPreamble partsState = iota // before the first part
	partsLine                       // after a boundary, in its line
	partsHeaders                    // in a part's headers
	partsContent                    // in a part's content
	partsEnd                        // after the last boundary
	partsFull                       // the limit was reached: nothing more counts
)

// parts digests a multipart body as it comes, so that its boundary does not count: each part's Content-Disposition (with
// the names of field and file), Content-Type, Content-Transfer-Encoding and content, in order. Any bytes have a digest.
// A boundary that RFC 2046 does not allow separates nothing: the body is one part.
//
// Two tries whose boundaries have different lengths must be cut at the same byte of a part. So each boundary takes
// delimiterCost of the limit. The limit ends cutMargin before that of the body: all bytes that count have come by then.
type parts struct {
	all       hash.Hash // the body's digest
	part      hash.Hash // of the current part's content
	delimiter string    // line end, two dashes, boundary
	held      []byte    // what has come and is not digested
	state     partsState
	inside    bool // the boundary that is being read ends a part
	room      int  // how much may still be digested, in bytes
	sum       [sha256.Size]byte
}

// newParts starts the digest of a body with this boundary. all has what precedes the body.
func newParts(all hash.Hash, boundary string, limit int) *parts {
	p := &parts{all: all, part: sha256.New(), delimiter: "\r\n--" + boundary, room: limit - cutMargin}
	p.held = append(p.held, "\r\n"...) // the first boundary may begin the body
	p.use(0)
	return p
}

// Write takes the next piece.
func (p *parts) Write(b []byte) {
	for len(b) > 0 && p.state < partsEnd {
		n := min(len(b), writePiece)
		p.held = append(p.held, b[:n]...)
		b = b[n:]
		left := p.held
		for p.state < partsEnd && p.step(&left) {
		}
		p.held = append(p.held[:0], left...)
	}
}

// step digests the beginning of b and removes it. False: it needs more bytes, or nothing more counts.
func (p *parts) step(b *[]byte) bool {
	switch p.state {
	case partsLine:
		return p.readLine(b)
	case partsHeaders:
		return p.readHeaders(b)
	}
	at := find(*b, p.delimiter)
	if at < 0 {
		// The delimiter may have come in part.
		p.content((*b)[:max(0, len(*b)-len(p.delimiter)+1)], b)
		return false
	}
	p.content((*b)[:at], b)
	if p.state == partsFull {
		return false
	}
	*b = (*b)[len(p.delimiter):]
	p.inside, p.state = p.state == partsContent, partsLine
	return true
}

// content digests the beginning of b and removes it.
func (p *parts) content(text []byte, b *[]byte) {
	*b = (*b)[len(text):]
	text = text[:min(len(text), p.room)]
	if p.state == partsContent {
		p.part.Write(text)
	}
	p.use(len(text))
}

// use takes bytes off the limit.
func (p *parts) use(n int) {
	if p.room -= n; p.room <= 0 {
		if p.state == partsContent {
			p.endPart()
		}
		p.state = partsFull
	}
}

// readLine reads the rest of a boundary's line.
func (p *parts) readLine(b *[]byte) bool {
	rest, padding := *b, 0
	for padding < len(*b) && fields.Blank(rest[0]) {
		rest = rest[1:]
		padding++
	}
	switch {
	case padding > maxPadding, len(rest) >= 2 && string(rest[:2]) != "\r\n" && (padding > 0 || string(rest[:2]) != "--"):
		// The line only begins like a boundary.
		p.state = partsPreamble
		if p.inside {
			p.state = partsContent
			p.part.Write([]byte(p.delimiter))
		}
		p.use(len(p.delimiter))
		return true
	case len(rest) < 2:
		return false
	case p.inside:
		p.endPart()
	}
	p.state = partsHeaders
	if string(rest[:2]) == "--" {
		p.state = partsEnd
	}
	p.use(delimiterCost)
	*b = rest // with the line end, so that a part without headers has its empty line
	return true
}

// readHeaders reads a part's headers. b begins with the end of the line before them.
func (p *parts) readHeaders(b *[]byte) bool {
	end := find((*b)[:min(len(*b), maxPartHeaders+len(headersEnd))], headersEnd)
	skip := len(headersEnd)
	if end < 0 {
		if len(*b) < maxPartHeaders+len(headersEnd) {
			return false
		}
		end, skip = maxPartHeaders, 0
	}
	if end > p.room {
		p.state = partsFull
		return false
	}
	out := make([]byte, 0, 256)
	for text := string((*b)[:end]); text != ""; {
		var line string
		line, text, _ = strings.Cut(text, "\r\n")
		name, value, _ := strings.Cut(line, ":")
		var kind byte
		switch name = fields.Lower(name); {
		case line != "" && fields.Blank(line[0]):
			kind, value = 'f', line // continues the line before it
		case name == "content-disposition":
			kind = 'd'
		case name == "content-transfer-encoding":
			kind = 'e'
		case name == "content-type":
			kind, value = 't', string(appendMediaType(nil, value))
		default:
			continue
		}
		value = fields.Trim(value)
		out = binary.AppendUvarint(append(out, kind), uint64(len(value)))
		out = append(out, value...)
	}
	*b = (*b)[end+skip:]
	p.all.Write(append(out, 'p'))
	p.part.Reset()
	p.state = partsContent
	p.use(end)
	return true
}

// find returns where text, which begins with a line end, is in b; -1: it is not.
func find(b []byte, text string) int {
	for from := 0; ; from++ {
		at := bytes.IndexByte(b[from:], text[0])
		if from += at; at < 0 || len(b)-from < len(text) {
			return -1
		}
		if string(b[from:from+len(text)]) == text {
			return from
		}
	}
}

func (p *parts) endPart() { p.all.Write(p.part.Sum(p.sum[:0])) }

// finish digests what is left. cut: not all of the body was written. It returns what the body is: 'M', whole; 'T', cut at the limit; 'U', broken off.
func (p *parts) finish(cut bool) byte {
	switch {
	case p.state == partsEnd:
		return 'M'
	case cut || p.state == partsFull:
		return 'T'
	}
	p.breakOff()
	return 'U'
}

// breakOff digests what is held of a body that ends before its last boundary.
func (p *parts) breakOff() {
	switch {
	case p.state == partsHeaders:
		p.all.Write(binary.AppendUvarint([]byte{'h'}, uint64(len(p.held))))
		p.all.Write(p.held)
		return
	case p.state == partsLine && p.inside:
		p.part.Write([]byte(p.delimiter))
	case p.state != partsContent:
		return
	}
	p.part.Write(p.held)
	p.endPart()
}
