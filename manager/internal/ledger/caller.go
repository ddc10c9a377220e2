package ledger

import (
	"context"
	"strings"
)

// maxCaller bounds the name of a caller in bytes.
const maxCaller = 64

// callerKey is where a context has the name of the caller.
type callerKey struct{}

// caller is a context with the name of the caller.
type caller struct {
	context.Context
	name string
}

// Value returns the caller itself for callerKey.
func (c *caller) Value(key any) any {
	if key == (callerKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// WithCaller returns a context whose calls an observer notes as from that caller: up to 64 bytes, for example the
// address of a gate. The port of an address is left out.
func WithCaller(ctx context.Context, name string) context.Context {
	if i := strings.LastIndexByte(name, ':'); i > 0 && strings.Count(name, ":") == 1 || i > 0 && name[i-1] == ']' {
		name = name[:i]
	}
	return &caller{ctx, name[:min(len(name), maxCaller)]}
}

// CallerOf returns the name that WithCaller set, or "".
func CallerOf(ctx context.Context) string {
	if c, ok := ctx.Value(callerKey{}).(*caller); ok {
		return c.name
	}
	return ""
}
