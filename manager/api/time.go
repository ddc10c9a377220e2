package api

import (
	"errors"
	"strings"
	"time"
)

// ParseTime reads a time of RFC 3339, such as 2026-01-02T15:04:05Z, strictly. t and z may be in lower case. A leap second
// (:60) is an error.
func ParseTime(s string) (time.Time, error) {
	s = strings.ToUpper(s)
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return t, err
	}
	// time.Parse takes one digit for the hour, a comma before the fraction, and large offsets.
	offset := "00:00"
	if !strings.HasSuffix(s, "Z") {
		offset = s[len(s)-len(offset):]
	}
	if s[len("2006-01-02T15")] != ':' || strings.Contains(s, ",") || offset[:2] > "23" || offset[3:] > "59" {
		return time.Time{}, errors.New("api: not a time of RFC 3339")
	}
	return t, nil
}
