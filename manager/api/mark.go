package api

import (
	"strconv"
	"strings"
)

// Mark is what a caller remembers of a ledger: which one answered, and how far it was. A manager says it with each answer
// (HeaderLedger), and a caller that remembers one says it with each call. A ledger that is behind a caller's mark has
// forgotten something.
type Mark struct {
	// ID is the ledger's: 32 hexadecimal digits, drawn at the first start on its store.
	ID string
	// Epoch counts from 1 how often the ledger has noticed that it forgot something.
	Epoch uint64
	// Position grows with what the ledger has made durable within an epoch; its lowest bits tell runs of the manager apart. 0
	// on engines that do not tell.
	Position uint64
}

// MarkIDBytes is the length of Mark.ID.
const MarkIDBytes = 32

// MaxMarkBytes bounds the text of a mark.
const MaxMarkBytes = MarkIDBytes + 2*21

// Append appends the text of the mark: ID.EPOCH.POSITION.
func (m Mark) Append(dst []byte) []byte {
	dst = append(append(dst, m.ID...), '.')
	dst = append(strconv.AppendUint(dst, m.Epoch, 10), '.')
	return strconv.AppendUint(dst, m.Position, 10)
}

// String is the text of the mark.
func (m Mark) String() string { return string(m.Append(nil)) }

// ParseMark reads the text of a mark.
func ParseMark(s string) (m Mark, ok bool) {
	id, numbers, _ := strings.Cut(s, ".")
	epoch, position, ok := strings.Cut(numbers, ".")
	if !ok || !digits(id, MarkIDBytes) || len(s) > MaxMarkBytes {
		return Mark{}, false
	}
	var err, err2 error
	m.ID = id
	m.Epoch, err = strconv.ParseUint(epoch, 10, 63)
	m.Position, err2 = strconv.ParseUint(position, 10, 63)
	return m, err == nil && err2 == nil && m.Epoch > 0
}
