//go:build race

package deep

// Race reports whether the race detector is on.
const Race = true
