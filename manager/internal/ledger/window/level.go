// Package window counts what each scope holds of the ledger's window, so that no scope takes more than its share.
//
// Scopes are not listed, so no number of scopes uses up memory or space. Scopes has a table of fixed size (a count-min
// sketch). The hash of a scope chooses a block of the table, and a cell in each row of the block. A scope holds at most the
// least of its cells. It seems larger than it is only if it shares all of its cells with large scopes.
//
// On an engine that several managers share, each manager's table begins empty, and has only what that manager inserted
// itself. On a durable engine inside this process the blocks are records, so that no start counts entries (see Collection).
package window

// Level is a part of the window. On engines that do not tell sizes the number of entries is an estimate, and bytes are
// neither known nor bounded.
type Level struct{ Entries, Bytes int64 }

// Unbounded is more bytes than there can be.
const Unbounded = 1 << 60

// Plus returns the sum.
func (a Level) Plus(b Level) Level { return Level{a.Entries + b.Entries, a.Bytes + b.Bytes} }

// Over returns by how much a exceeds b.
func (a Level) Over(b Level) Level {
	return Level{max(a.Entries-b.Entries, 0), max(a.Bytes-b.Bytes, 0)}
}

// Fits reports whether need more than a is within limit.
func (a Level) Fits(need, limit Level) bool { return a.Plus(need).Over(limit) == Level{} }

// Change is a transaction's change of what a scope holds.
type Change struct {
	Scope uint64 // Scopes.Hash
	Level
	// Released: the holder of a reservation ended it.
	Released bool
}
