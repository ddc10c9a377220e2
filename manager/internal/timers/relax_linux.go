// Package timers lowers the cost of the process's timers.
package timers

import (
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// While a goroutine runs or waits for the disk, Go's runtime looks after its threads 14,000 times a second: it sleeps for 20 us, and Linux
// makes 70 of them. That was a quarter of the manager's CPU time under load, and a third with one caller. timerSlack is by how much Linux
// may be late with a sleep instead. The manager's own timers need not be more exact.
const (
	timerSlack   = 1_000_000 // ns
	defaultSlack = 50_000    // of Linux
)

// relaxedVariable says to the program that it has been started again.
const relaxedVariable = "ONCEGATE_TIMERS_RELAXED"

// Relax starts the program again, as the same process, with timerSlack. Threads have the slack of those that start them, and the
// thread which it is about began before the program did. An operator who has set another slack (TimerSlackNSec of systemd) keeps it, and
// so does a system that refuses.
func Relax() {
	if os.Getenv(relaxedVariable) != "" {
		_ = os.Unsetenv(relaxedVariable)
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err != nil || slack != defaultSlack {
		return
	}
	path, err := os.Executable()
	if err != nil || unix.Prctl(unix.PR_SET_TIMERSLACK, timerSlack, 0, 0, 0) != nil {
		return
	}
	_ = syscall.Exec(path, os.Args, append(os.Environ(), relaxedVariable+"=1"))
}
