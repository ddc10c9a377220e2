package api

import "slices"

// Op is what a call on a stream asks for. The values are those on the wire.
type Op uint8

// The calls. OpPing is answered at once.
const (
	OpReserve Op = iota + 1
	OpCommit
	OpReject
	OpRelease
	OpRenew
	OpUnknown
	OpLookUp
	OpPing
)

var opNames = [...]string{"invalid", "reserve", "commit", "reject", "release", "renew", "unknown", "look-up", "ping"}

// String returns the operation's name, "invalid" for an unknown one.
func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return opNames[0]
}

// ParseOp is the inverse of String for operations that have a Path.
func ParseOp(name string) (Op, bool) {
	op := Op(max(slices.Index(opNames[:], name), 0))
	return op, op.Path() != ""
}

var opPaths = [...]string{"", PathReserve, PathCommit, PathReject, PathRelease, PathRenew, PathUnknown}

// Path is the path of the operation as a call over HTTP, "" for OpLookUp, OpPing and an unknown one.
func (o Op) Path() string {
	if int(o) < len(opPaths) {
		return opPaths[o]
	}
	return ""
}
