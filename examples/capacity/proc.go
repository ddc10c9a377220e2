package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
)

// tickMicros is the unit of CPU time in /proc on Linux.
const tickMicros = 1e4

// cpuMicros returns the CPU time of a process in microseconds.
func cpuMicros(pid int) (float64, error) {
	fields, err := statFields(pid)
	if err != nil {
		return 0, err
	}
	user, err := strconv.ParseFloat(fields[11], 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseFloat(fields[12], 64)
	return (user + system) * tickMicros, err
}

// resident returns the resident memory of a process in bytes.
func resident(pid int) (int64, error) {
	fields, err := statFields(pid)
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseInt(fields[21], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// statFields returns the fields of /proc/PID/stat after the name, which may contain spaces.
func statFields(pid int) ([]string, error) {
	name := fmt.Sprintf("/proc/%d/stat", pid)
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 22 {
		return nil, fmt.Errorf("%s has %d fields, not 22 or more", name, len(fields))
	}
	return fields, nil
}

// numbers reads lines of a name without labels, a separator and a number, and leaves out all others.
func numbers(ctx context.Context, url, separator string) (map[string]float64, error) {
	body, err := get(ctx, url)
	if err != nil {
		return nil, err
	}
	found := map[string]float64{}
	for line := range strings.Lines(string(body)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), separator)
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			found[name] = v
		}
	}
	return found, nil
}

func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return body, err
}
