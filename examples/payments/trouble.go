package main

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Bounds of what a caller may ask for.
const (
	maxDelay     = 60 * time.Second
	maxBodyBytes = 16 << 20
)

// drop says whether the connection is closed instead of answering, and whether before or after the work.
type drop int

const (
	dropNot drop = iota
	dropBefore
	dropAfter
)

// trouble is what a request's x-demo headers ask for. The zero value with status 201 asks for nothing.
type trouble struct {
	delay     time.Duration
	status    int
	bodyBytes int
	drop      drop
}

// parseTrouble reads the x-demo headers. An error names the header, its value and what is allowed.
func parseTrouble(h http.Header) (trouble, error) {
	t := trouble{status: http.StatusCreated}
	delayMillis := 0
	for _, number := range []struct {
		header   string
		to       *int
		min, max int
	}{
		{"x-demo-delay-ms", &delayMillis, 0, int(maxDelay / time.Millisecond)},
		{"x-demo-status", &t.status, 200, 599},
		{"x-demo-body-bytes", &t.bodyBytes, 0, maxBodyBytes},
	} {
		value := h.Get(number.header)
		if value == "" {
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil || n < number.min || n > number.max {
			return trouble{}, fmt.Errorf("header %s: %q is not a whole number from %d to %d",
				number.header, value, number.min, number.max)
		}
		*number.to = n
	}
	t.delay = time.Duration(delayMillis) * time.Millisecond

	switch value := h.Get("x-demo-drop"); value {
	case "":
	case "before":
		t.drop = dropBefore
	case "after":
		t.drop = dropAfter
	default:
		return trouble{}, fmt.Errorf("header x-demo-drop: %q is not one of before, after", value)
	}
	return t, nil
}
