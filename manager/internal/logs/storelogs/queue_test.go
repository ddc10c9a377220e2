package storelogs

import (
	"testing"

	"github.com/oncegate/oncegate/manager/internal/logs/logstest"
)

// The queue of a log is bounded by bytes. A caller that leaves before its turn gives back what it took.
func TestQueueIsBoundedByBytes(t *testing.T) {
	e, l := new(Engine), &line{running: true} // nobody serves it
	first := &request{bytes: maxWaitingBytes - 10}
	if err := e.enqueue(l, first); err != nil {
		t.Fatal(err)
	}
	second := &request{bytes: 11}
	if err := e.enqueue(l, second); logstest.Code(err) != "unavailable" {
		t.Errorf("a request beyond the bound: %v", err)
	}
	l.withdraw(first)
	if err := e.enqueue(l, second); err != nil {
		t.Errorf("after the first one left: %v", err)
	}
	l.withdraw(first) // it is not there any more
	if group := l.next(); len(group) != 1 || group[0] != second || l.waiting != 0 {
		t.Errorf("the next group has %d requests, %d bytes wait", len(group), l.waiting)
	}
}
