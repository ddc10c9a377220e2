package api

import (
	"testing"
	"time"
)

func TestParseTimeIsStrict(t *testing.T) {
	want := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for s, want := range map[string]time.Time{
		"2026-01-02T03:04:05Z": want, "2026-01-02t03:04:05z": want, "2026-01-02T05:04:05+02:00": want, "2026-01-01t13:34:05-13:30": want,
		"2026-01-02T03:04:05.000Z": want, "2026-01-02T03:04:05.25Z": want.Add(250 * time.Millisecond),
		"2026-01-03T03:03:05+23:59": want,
	} {
		if got, err := ParseTime(s); err != nil || !got.Equal(want) {
			t.Errorf("%s: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{
		"", "2026-01-02", "2026-01-02T3:04:05Z", "2026-01-02T03:04:05,5Z", "2026-01-02 03:04:05Z", "2026-01-02T03:04Z", "2026-01-02T03:04:05",
		"2026-01-02T03:04:05+2:00", "2026-01-02T03:04:05+0200", "2026-01-02T03:04:05+24:00", "2026-01-02T03:04:05+02:60", "2026-01-02T03:04:05.Z",
		"2026-02-30T03:04:05Z", "2026-01-02T24:00:00Z", "2026-01-02T03:04:05Z ", "026-01-02T03:04:05Z", "2026-1-02T03:04:05Z",
	} {
		if got, err := ParseTime(s); err == nil {
			t.Errorf("%q: %v", s, got)
		}
	}
}
