package wal_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// signalled reports whether a waiter was sent something, without waiting for it.
func signalled(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func waiter(seq uint64) (wal.Waiter, chan struct{}) {
	c := make(chan struct{}, 1)
	return wal.Waiter{Sequence: seq, C: c}, c
}

// Each waiter is signalled when its own record is durable: immediately, with the batch being committed, or with the next
// batch.
func TestWaitersLearnOfTheirOwnRecord(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	first := mustAppend(t, l, body(1))
	mustWait(t, l, first)
	g := newGate(fs, isSync)
	second := mustAppend(t, l, body(2))
	<-g.entered // its batch is on its way
	third := mustAppend(t, l, body(3))
	a, now := waiter(first)
	b, inflight := waiter(second)
	c, collected := waiter(third)
	full := wal.Waiter{Sequence: third, C: make(chan struct{})} // has no room, and delays no other waiter
	l.Notify([]wal.Waiter{a, full, b, c})
	if !signalled(now) {
		t.Error("a durable record's waiter is not signalled immediately")
	}
	if signalled(inflight) || signalled(collected) {
		t.Error("a waiter is signalled before the sync")
	}
	g.release()
	<-inflight
	if l.Durable() < second {
		t.Error("the second record's waiter is signalled too early")
	}
	<-collected
	if l.Durable() < third {
		t.Error("the third record's waiter is signalled too early")
	}
	mustClose(t, l)
}

// When the log fails every waiter is signalled, and so is one that comes later.
func TestNotifyOfFailure(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	entered, fail := make(chan struct{}), make(chan struct{})
	failOn(fs, 1, syscall.EIO, func(op faultfs.Op) bool {
		if !isSync(op) {
			return false
		}
		close(entered)
		<-fail
		return true
	})
	first := mustAppend(t, l, body(1))
	<-entered
	second := mustAppend(t, l, body(2))
	a, inflight := waiter(first)
	b, collected := waiter(second)
	l.Notify([]wal.Waiter{a, b})
	if signalled(inflight) || signalled(collected) {
		t.Error("a waiter is signalled before the sync")
	}
	close(fail)
	<-inflight
	if !errors.Is(l.Err(), wal.ErrFailed) {
		t.Errorf("after the signal: %v, want ErrFailed", l.Err())
	}
	<-collected
	c, late := waiter(second)
	l.Notify([]wal.Waiter{c})
	<-late
	if err := l.WaitDurable(t.Context(), second); !errors.Is(err, wal.ErrFailed) {
		t.Errorf("WaitDurable: %v, want ErrFailed", err)
	}
	if err := l.Close(); !errors.Is(err, wal.ErrFailed) {
		t.Errorf("Close: %v, want ErrFailed", err)
	}
}
