package logstest

import (
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
)

// fullWindow: a window that is full forgets the oldest ids, and says so.
func fullWindow(e *env) {
	keys := 3
	e.make(logs.Change{MaxKeys: &keys})
	e.Expect("1, 2", Entry("a", ""), Entry("b", ""))
	e.Expect("3, 4", Entry("c", ""), Entry("d", ""))
	e.Expect("2 again, 3 again, 4 again", Entry("b", ""), Entry("c", ""), Entry("d", ""))
	if i := e.Info(); i.Keys != 3 || i.Evicted != 1 {
		e.Errorf("the window holds %d ids and has forgotten %d", i.Keys, i.Evicted)
	}
	e.restart()
	e.Expect("5", Entry("a", ""))
	e.Expect("3 again, 6", Entry("c", ""), Entry("b", ""))
	e.Expect("7, 8, 9, 10, 11", Entry("1", ""), Entry("2", ""), Entry("3", ""), Entry("4", ""), Entry("5", ""))
	if i := e.Info(); i.Keys != 3 {
		e.Errorf("the window holds %d ids", i.Keys)
	}
	e.Expect("9 again, 10 again, 11 again, 12", Entry("3", ""), Entry("4", ""), Entry("5", ""), Entry("b", ""))
}

// fullRefuses: a window that refuses takes new ids again when old ones expire.
func fullRefuses(e *env) {
	keys, refuse := 2, true
	e.make(logs.Change{MaxKeys: &keys, RefuseWhenFull: &refuse})
	e.Expect("1", Entry("a", ""))
	e.rig.Advance(time.Minute)
	e.Expect("2, window-full, 1 again, 3", Entry("b", ""), Entry("c", ""), Entry("a", ""), logs.Item{})
	e.restart()
	e.Expect("window-full", Entry("c", ""))
	e.rig.Advance(4*time.Minute + e.rig.Slack)
	e.Expect("4, 2 again, window-full", Entry("c", ""), Entry("b", ""), Entry("d", ""))
}

// refusedMakesRoom: an append of which nothing is accepted may find ids that are too old. They no longer count.
func refusedMakesRoom(e *env) {
	keys, refuse := 2, true
	e.make(logs.Change{MaxKeys: &keys, RefuseWhenFull: &refuse})
	e.open(e.rig.Engine(), "w", 1)
	e.open(e.rig.Engine(), "w", 2)
	e.Expect("1, 2", Entry("a", ""), Entry("b", ""))
	e.rig.Advance(5*time.Minute + e.rig.Slack)
	old := Entry("x", "")
	old.Writer, old.Epoch = "w", 1
	e.Expect("fenced", old)
	e.Expect("3, 4, window-full", Entry("c", ""), Entry("d", ""), Entry("e", ""))
	if n := e.Info().Keys; n != 2 {
		e.Errorf("the window holds %d ids, want 2", n)
	}
}

// agreeOnTime: managers agree on a log's time, however long each of them has run without any log.
func agreeOnTime(e *env) {
	e.rig.Advance(time.Hour)
	managers := e.managers()
	young := &Caller{e.T, func() logs.Engine { return managers[1] }}
	if _, _, err := managers[1].Put(e.Context(), LogName, logs.Change{}); err != nil {
		e.Fatal(err)
	}
	young.Expect("1", Entry("a", ""))
	e.Expect("1 again", Entry("a", ""))
	e.rig.Duty()
	young.Expect("1 again", Entry("a", ""))
}

// fullOfClients: a client that was forgotten begins again.
func fullOfClients(e *env) {
	keys, identity := 2, logs.Structured
	e.make(logs.Change{MaxKeys: &keys, Identity: &identity})
	id := func(client string, seq int) logs.Item {
		return Entry(fmt.Sprintf("%s:%d:0123456789abcdef", client, seq), "")
	}
	e.Expect("1, 2", id("a", 1), id("b", 1))
	e.Expect("3", id("a", 2))
	e.Expect("4", id("c", 1)) // b is the least recently used
	e.Expect("sequence-gap, 1 again, 5, sequence-gap", id("b", 2), id("a", 1), id("a", 3), id("a", 5))
	e.restart()
	e.Expect("5 again, 6, sequence-gap", id("a", 3), id("c", 2), id("b", 2))
	if i := e.Info(); i.Keys != 2 {
		e.Errorf("the window holds %d clients", i.Keys)
	}
}
