package main

import (
	"maps"
	"sync"
)

// Bounds of what is counted by key.
const (
	maxKeys     = 100_000
	maxKeyBytes = 255
)

// executions counts how often the work was done, in all and by key. It is safe for concurrent use.
type executions struct {
	limit int // different keys

	mu        sync.Mutex
	total     int64
	untracked int64
	keys      map[string]int64
}

func newExecutions(limit int) *executions {
	return &executions{limit: limit, keys: make(map[string]int64)}
}

// add counts one execution under key and returns its number, starting at 1.
func (e *executions) add(key string) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.total++
	_, known := e.keys[key]
	if known || len(e.keys) < e.limit && len(key) <= maxKeyBytes {
		e.keys[key]++
	} else {
		e.untracked++
	}
	return e.total
}

// executionCounts is the answer of GET /executions; Total is the sum of all keys' executions and Untracked.
type executionCounts struct {
	Total     int64            `json:"total"`
	Keys      map[string]int64 `json:"keys"`
	Untracked int64            `json:"untracked"`
}

func (e *executions) counts() executionCounts {
	e.mu.Lock()
	defer e.mu.Unlock()
	return executionCounts{Total: e.total, Keys: maps.Clone(e.keys), Untracked: e.untracked}
}

// countsOf is counts with only that key in Keys, or none if it was not executed.
func (e *executions) countsOf(key string) executionCounts {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := executionCounts{Total: e.total, Keys: map[string]int64{}, Untracked: e.untracked}
	if n, ok := e.keys[key]; ok {
		c.Keys[key] = n
	}
	return c
}
