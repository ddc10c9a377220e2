package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// describeHost says what machine this is, and how fast it makes a write to dir durable.
func describeHost(dir string) (string, error) {
	find := func(file, pattern string) string {
		text, err := os.ReadFile(file)
		found := regexp.MustCompile(pattern).FindSubmatch(text)
		if err != nil || found == nil {
			return "unknown"
		}
		return string(found[1])
	}
	sync, err := syncTime(dir)
	memory, _ := strconv.Atoi(find("/proc/meminfo", `MemTotal: +(\d+) kB`))
	return fmt.Sprintf("Machine: %d cores (%s), %d GB memory, Linux %s, a write of 512 bytes with fdatasync takes %v (mean of %d).",
		runtime.NumCPU(), find("/proc/cpuinfo", `model name\s*: (.*)`), (memory+1<<19)>>20, find("/proc/sys/kernel/osrelease", "(.*)"), sync.Round(time.Microsecond), syncs), err
}

const syncs = 200

// syncTime is the mean of how long a small write and its fdatasync take.
func syncTime(dir string) (time.Duration, error) {
	f, err := os.CreateTemp(dir, "sync")
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close(); _ = os.Remove(f.Name()) }()
	block := make([]byte, 512)
	if _, err := f.Write(make([]byte, syncs*len(block))); err != nil {
		return 0, err
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	began := time.Now()
	for i := range syncs {
		if _, err := f.WriteAt(block, int64(i*len(block))); err != nil {
			return 0, err
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return 0, err
		}
	}
	return time.Since(began) / syncs, nil
}

// version returns the first line that a program prints about itself.
func version(ctx context.Context, name string, args ...string) string {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return name + " (version unknown)"
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}

// moduleVersion is the version of a module that this program is built with, after the module's short name.
func moduleVersion(short, path string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			if d.Path == path {
				return short + " " + d.Version
			}
		}
	}
	return short
}
