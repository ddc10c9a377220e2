//go:build linux

package timers

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// childVariable makes the test program call Relax and say what it is then.
const childVariable = "ONCEGATE_TEST_RELAX"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) == "" {
		os.Exit(m.Run())
	}
	Relax()
	slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	fmt.Println(os.Getpid(), slack, err, os.Args[1:], os.Getenv(relaxedVariable))
}

// TestRelaxTimers starts a process that relaxes its timers: it stays the same process with the same arguments, and begins again once.
func TestRelaxTimers(t *testing.T) {
	cmd := exec.Command(os.Args[0], "serve", "--listen", "a b")
	cmd.Env = append(os.Environ(), childVariable+"=1")
	out := new(strings.Builder)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, defaultSlack, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.TrimSpace(out.String()), fmt.Sprintf("%d %d <nil> [serve --listen a b]", cmd.Process.Pid, timerSlack); got != want {
		t.Errorf("the program says %q, want %q", got, want)
	}
}
