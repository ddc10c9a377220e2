package storelogs

import (
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
)

// fullWindow: a window that is full forgets the oldest ids, and says so.
func fullWindow(e *env) {
	keys := 3
	e.make(logs.Change{MaxKeys: &keys})
	e.expect("1, 2", entry("a", ""), entry("b", ""))
	e.expect("3, 4", entry("c", ""), entry("d", ""))
	e.expect("2 again, 3 again, 4 again", entry("b", ""), entry("c", ""), entry("d", ""))
	if i := e.info(); i.Keys != 3 || i.Evicted != 1 {
		e.Errorf("the window holds %d ids and has forgotten %d", i.Keys, i.Evicted)
	}
	e.rig.restart(0)
	e.expect("5", entry("a", ""))
	e.expect("3 again, 6", entry("c", ""), entry("b", ""))
	e.expect("7, 8, 9, 10, 11", entry("1", ""), entry("2", ""), entry("3", ""), entry("4", ""), entry("5", ""))
	if i := e.info(); i.Keys != 3 {
		e.Errorf("the window holds %d ids", i.Keys)
	}
	e.expect("9 again, 10 again, 11 again, 12", entry("3", ""), entry("4", ""), entry("5", ""), entry("b", ""))
}

// fullRefuses: a window that refuses takes new ids again when old ones expire.
func fullRefuses(e *env) {
	keys, refuse := 2, true
	e.make(logs.Change{MaxKeys: &keys, RefuseWhenFull: &refuse})
	e.expect("1", entry("a", ""))
	e.rig.advance(time.Minute)
	e.expect("2, window-full, 1 again, 3", entry("b", ""), entry("c", ""), entry("a", ""), logs.Item{})
	e.rig.restart(0)
	e.expect("window-full", entry("c", ""))
	e.rig.advance(4*time.Minute + e.rig.slack())
	e.expect("4, 2 again, window-full", entry("c", ""), entry("b", ""), entry("d", ""))
}

// refusedMakesRoom: an append of which nothing is accepted may find ids that are too old. They no longer count.
func refusedMakesRoom(e *env) {
	keys, refuse := 2, true
	e.make(logs.Change{MaxKeys: &keys, RefuseWhenFull: &refuse})
	e.open(e.rig.Engine, "w", 1)
	e.open(e.rig.Engine, "w", 2)
	e.expect("1, 2", entry("a", ""), entry("b", ""))
	e.rig.advance(5*time.Minute + e.rig.slack())
	old := entry("x", "")
	old.Writer, old.Epoch = "w", 1
	e.expect("fenced", old)
	e.expect("3, 4, window-full", entry("c", ""), entry("d", ""), entry("e", ""))
	if n := e.info().Keys; n != 2 {
		e.Errorf("the window holds %d ids, want 2", n)
	}
}

// agreeOnTime: managers agree on a log's time, however long each of them has run without any log.
func agreeOnTime(e *env) {
	e.rig.advance(time.Hour)
	managers := e.managers()
	young := &caller{e.T, func() *Engine { return managers[1] }}
	if _, _, err := managers[1].Put(e.Context(), logName, logs.Change{}); err != nil {
		e.Fatal(err)
	}
	young.expect("1", entry("a", ""))
	e.expect("1 again", entry("a", ""))
	e.rig.duties()
	young.expect("1 again", entry("a", ""))
}

// fullOfClientsRefuses: a client that appended nothing for the time of the window makes room for a new one.
func fullOfClientsRefuses(e *env) {
	keys, refuse, identity := 2, true, logs.Structured
	e.make(logs.Change{MaxKeys: &keys, Identity: &identity, RefuseWhenFull: &refuse})
	id := func(client string, seq int) logs.Item {
		return entry(fmt.Sprintf("%s:%d:0123456789abcdef", client, seq), "")
	}
	e.expect("1, 2, window-full", id("a", 1), id("b", 1), id("c", 1))
	e.rig.advance(4 * time.Minute)
	e.expect("3, window-full", id("b", 2), id("c", 1))
	e.rig.advance(time.Minute + e.rig.slack())
	e.expect("4, window-full, 3 again", id("c", 1), id("d", 1), id("b", 2))
	e.expect("sequence-gap", id("a", 2)) // it was forgotten
	if i := e.info(); i.Keys != 2 || i.WindowBytes != 2*1280 {
		e.Errorf("the window holds %d clients in %d bytes", i.Keys, i.WindowBytes)
	}
}

// fullOfClients: a client that was forgotten begins again.
func fullOfClients(e *env) {
	keys, identity := 2, logs.Structured
	e.make(logs.Change{MaxKeys: &keys, Identity: &identity})
	id := func(client string, seq int) logs.Item {
		return entry(fmt.Sprintf("%s:%d:0123456789abcdef", client, seq), "")
	}
	e.expect("1, 2", id("a", 1), id("b", 1))
	e.expect("3", id("a", 2))
	e.expect("4", id("c", 1)) // b is the least recently used
	e.expect("sequence-gap, 1 again, 5, sequence-gap", id("b", 2), id("a", 1), id("a", 3), id("a", 5))
	e.rig.restart(0)
	e.expect("5 again, 6, sequence-gap", id("a", 3), id("c", 2), id("b", 2))
	if i := e.info(); i.Keys != 2 {
		e.Errorf("the window holds %d clients", i.Keys)
	}
}
