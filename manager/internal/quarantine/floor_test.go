package quarantine

import (
	"testing"
	"time"
)

// TestFloorsOfTwoRestoresDiffer: both restores know the same floor of before, and their clocks are behind it.
func TestFloorsOfTwoRestoresDiffer(t *testing.T) {
	before := uint64(time.Now().Add(6*time.Hour).Unix()) << 20
	one, other := NextFloor(time.Now(), before), NextFloor(time.Now(), before)
	if one == other || min(one, other) < before+epochsOfARestore || max(one, other) >= 1<<53 {
		t.Errorf("%d and %d, above %d", one, other, before)
	}
	if later := NextFloor(time.Now().Add(24*time.Hour), before); later < before {
		t.Errorf("%d with a clock that is right, above %d", later, before)
	}
}
