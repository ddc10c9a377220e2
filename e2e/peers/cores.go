package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// cores divides the machine's cores between the manager that is measured and all else.
type cores struct{ manager, rest unix.CPUSet }

// divideCores gives the first core to managers and the others to this program and the children that it starts
// from now on.
func divideCores() (*cores, error) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return nil, err
	}
	if all.Count() < 2 {
		return nil, fmt.Errorf("the manager needs its own core: this program may use %d, and needs 2", all.Count())
	}
	first := 0
	for !all.IsSet(first) {
		first++
	}
	c := &cores{rest: all}
	c.rest.Clear(first)
	c.manager.Set(first)
	tasks, err := os.ReadDir("/proc/self/task") // threads to come inherit from these
	if err != nil {
		return nil, err
	}
	for _, task := range tasks {
		id, err := strconv.Atoi(task.Name())
		if err != nil {
			return nil, err
		}
		if err := unix.SchedSetaffinity(id, &c.rest); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// start runs a function that starts a manager. A child inherits the cores of the thread that starts it.
func (c *cores) start(f func() (*process, error)) (*process, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.SchedSetaffinity(0, &c.manager); err != nil {
		return nil, err
	}
	p, err := f()
	if back := unix.SchedSetaffinity(0, &c.rest); err == nil {
		err = back
	}
	return p, err
}
