//go:build race

package ledger

// raceDetector: it looks for nothing in what one goroutine does, and takes long.
const raceDetector = true
