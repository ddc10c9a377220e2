package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
)

// describeHost says what machine this is, and how fast it makes a write to dir durable.
func describeHost(dir string) (string, error) {
	model := "unknown CPU"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(v)
				break
			}
		}
	}
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "", err
	}
	var memory int64 // in KB
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		_, _ = fmt.Sscanf(string(text), "MemTotal: %d kB", &memory)
	}
	sync, err := syncTime(dir)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("Machine: %d cores (%s), %d GB memory, Linux %s, a write of 512 bytes with fdatasync takes %v (median of %d).",
		runtime.NumCPU(), model, (memory+1<<19)>>20, strings.TrimSpace(string(kernel)), sync.Round(time.Microsecond), syncs), nil
}

const syncs = 200

// syncTime is the median of how long a small write and its fdatasync take.
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
	took := make([]time.Duration, syncs)
	for i := range took {
		began := time.Now()
		if _, err := f.WriteAt(block, int64(i*len(block))); err != nil {
			return 0, err
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return 0, err
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took[syncs/2], nil
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
