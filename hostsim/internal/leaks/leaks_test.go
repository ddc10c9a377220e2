package leaks

import (
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

func leak(started, until chan struct{}) {
	close(started)
	<-until
}

// A goroutine is waited for, and named by its stack if it does not end.
func TestLeaksAreNamed(t *testing.T) {
	started, until := make(chan struct{}), make(chan struct{})
	go leak(started, until)
	<-started
	left := await(0)
	if len(left) != 1 || !strings.Contains(left[0], "leaks.leak(") {
		t.Errorf("left are %q", left)
	}
	time.AfterFunc(time.Millisecond, func() { close(until) })
	if left := await(patience); len(left) != 0 {
		t.Errorf("left are %q", left)
	}
}
