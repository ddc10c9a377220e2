package logs

import "context"

// None is an Engine that keeps no logs, and says why.
type None struct {
	// Why completes "this manager keeps no logs: ...".
	Why string
}

var _ Engine = None{}

func (n None) err() error { return Unsupported(n.Why) }

// Put and all others refuse.
func (n None) Put(context.Context, string, Change) (Info, bool, error) { return Info{}, false, n.err() }

// Delete refuses.
func (n None) Delete(context.Context, string) error { return n.err() }

// Get refuses.
func (n None) Get(context.Context, string) (Info, error) { return Info{}, n.err() }

// List refuses.
func (n None) List(context.Context, string, int) ([]Info, error) { return nil, n.err() }

// Append refuses.
func (n None) Append(context.Context, string, []Item, bool) ([]Outcome, error) { return nil, n.err() }

// Read refuses.
func (n None) Read(context.Context, string, Query) (Page, error) { return Page{}, n.err() }

// ByID refuses.
func (n None) ByID(context.Context, string, string) (Entry, error) { return Entry{}, n.err() }

// OpenWriter refuses.
func (n None) OpenWriter(context.Context, string, string) (uint64, error) { return 0, n.err() }

// Writers refuses.
func (n None) Writers(context.Context, string, string, int) ([]Writer, error) { return nil, n.err() }

// RemoveWriter refuses.
func (n None) RemoveWriter(context.Context, string, string) error { return n.err() }

// Drain does nothing.
func (None) Drain() {}

// Close does nothing.
func (None) Close() error { return nil }
