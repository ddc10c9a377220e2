package cache

import (
	"sync"
	"testing"
)

func TestAliveWhileItBeats(t *testing.T) {
	for _, r := range usableHosts {
		h := newHost(r)
		a, b := newTable(h, Options{}), newTable(h, Options{})
		a.Beat(1, 1)
		for i := range int64(100) {
			now := 1 + i*BeatPeriod
			b.Beat(2, now)
			if alive := a.Alive(1, now); alive != (now-1 < silence) {
				t.Fatalf("%+v: after a silence of %d s alive is %v", r, i, alive)
			}
			if !a.Alive(2, now) {
				t.Fatalf("%+v: a VM that beats is not alive", r)
			}
		}
		if value, _, _ := h.Get(a.aliveKey(), nil); len(value) != 1+aliveSize {
			t.Errorf("%+v: the list has %d bytes, so the silent VM is still in it", r, len(value))
		}
		// It was only slow.
		a.Beat(1, 100*BeatPeriod)
		if !b.Alive(1, 100*BeatPeriod) {
			t.Errorf("%+v: a VM that beats again is not alive", r)
		}
	}
}

func TestAliveListIsBounded(t *testing.T) {
	h := newHost(envoy)
	tab := newTable(h, Options{})
	for queue := range uint32(maxAlive + 10) {
		tab.Beat(queue, int64(queue))
	}
	if value, _, _ := h.Get(tab.aliveKey(), nil); len(value) != 1+maxAlive*aliveSize {
		t.Errorf("the list has %d bytes", len(value))
	}
	if !tab.Alive(maxAlive+9, maxAlive+10) || tab.Alive(9, maxAlive+10) {
		t.Error("it is not the one silent longest that was left out")
	}
}

// If the list says nothing, every VM counts as alive.
func TestAllVMsAreAliveWithoutAList(t *testing.T) {
	h := newHost(envoy)
	tab := newTable(h, Options{})
	if !tab.Alive(1, 1) {
		t.Error("without a list a VM is dead")
	}
	for _, garbage := range []string{"", "x", "\x02" + "123412345678", "\x01" + "1234123456789"} {
		h.Set(tab.aliveKey(), []byte(garbage), 0)
		if !tab.Alive(1, 1) {
			t.Errorf("with the list %q a VM is dead", garbage)
		}
	}
	tab.Beat(1, 1)
	if !tab.Alive(1, 1) || tab.Alive(2, 1) {
		t.Error("a beat does not replace what is no list")
	}
	tab.sem.Usable = false
	tab.Beat(3, 1)
	if !tab.Alive(3, 1) || !tab.Alive(2, 1) {
		t.Error("without shared data a VM is dead")
	}
}

// VMs that beat at the same moment do not lose each other's beats.
func TestConcurrentBeatsAreNotLost(t *testing.T) {
	for _, r := range usableHosts {
		h := newHost(r)
		const vms = 8
		var all sync.WaitGroup
		for queue := range uint32(vms) {
			tab := newTable(h, Options{})
			all.Go(func() {
				for now := range int64(50) {
					tab.Beat(queue, now*BeatPeriod)
				}
			})
		}
		all.Wait()
		tab := newTable(h, Options{})
		for queue := range uint32(vms) {
			if !tab.Alive(queue, 49*BeatPeriod) {
				t.Errorf("%+v: the beats of VM %d are lost", r, queue)
			}
		}
	}
}
