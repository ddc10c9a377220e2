package e2e

import (
	"io"
	"net/http"
	"regexp"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

var threadsMetric = regexp.MustCompile(`(?m)^go_sched_gomaxprocs_threads (\d+)$`)

// A sync of the log does not hold up all else on a machine with one core. The environment still decides.
func TestOneCore(t *testing.T) {
	for _, test := range []struct{ environment, want string }{{"", "2"}, {"1", "1"}} {
		t.Setenv("GOMAXPROCS", test.environment)
		p := startOnOneCore(t)
		resp, err := http.Get("http://" + p.addr["admin"] + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if got := threadsMetric.FindSubmatch(text); got == nil || string(got[1]) != test.want {
			t.Errorf("GOMAXPROCS=%q: the manager runs %q threads of Go code at once, want %s", test.environment, got, test.want)
		}
	}
}

// startOnOneCore starts a manager that may use only one of the machine's cores.
func startOnOneCore(t *testing.T) *process {
	t.Helper()
	runtime.LockOSThread() // a child inherits the cores of the thread that starts it
	defer runtime.UnlockOSThread()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	core := 0
	for !all.IsSet(core) {
		core++
	}
	one.Set(core)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.SchedSetaffinity(0, &all); err != nil {
			t.Error(err)
		}
	}()
	return startManager(t, "--admin", "127.0.0.1:0", "--store", "memory")
}
