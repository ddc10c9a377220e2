// Package leaks finds goroutines that outlive the tests of a package. It uses the standard library alone, so that module
// hostsim requires nothing but its engine.
package leaks

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// patience ends the wait for goroutines that never end.
const patience = time.Minute

// Main runs the tests of a package as its TestMain, and ends the process. The exit code is 1 if goroutines are left.
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if left := await(patience); len(left) > 0 {
			fmt.Fprintf(os.Stderr, "goroutines outlive the tests:\n\n%s\n", strings.Join(left, "\n\n"))
			code = 1
		}
	}
	os.Exit(code)
}

// await waits until no other goroutine is left, and returns the stacks of those that still run after limit.
func await(limit time.Duration) []string {
	for end := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		if left := others(); len(left) == 0 || time.Now().After(end) {
			return left
		}
	}
}

// others returns the stacks of all goroutines but the caller's and those of package testing and of signals.
func others() []string {
	all := make([]byte, 1<<16)
	for {
		n := runtime.Stack(all, true)
		if n < len(all) {
			all = all[:n]
			break
		}
		all = make([]byte, 2*len(all))
	}
	stacks := strings.Split(strings.TrimSpace(string(all)), "\n\n")[1:]
	return slices.DeleteFunc(stacks, func(stack string) bool {
		_, calls, _ := strings.Cut(stack, "\n")
		return strings.HasPrefix(calls, "testing.") || strings.Contains(calls, "os/signal.") || strings.Contains(calls, "runtime.ensureSigM")
	})
}
