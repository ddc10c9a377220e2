package ship

import (
	"slices"
	"time"
)

// addPoint adds a point for what is durable now. Any goroutine may call it.
func (st *stream) addPoint() {
	// The time comes first: whatever was durable at that time is among the records.
	p := point{Time: time.Now().UnixMilli()}
	p.Sequence = st.log.Durable()
	st.mu.Lock()
	defer st.mu.Unlock()
	if n := len(st.points); n > 0 {
		p.Time = max(p.Time, st.points[n-1].Time) // a clock that was set back
		if st.points[n-1].Sequence == p.Sequence {
			if n > 1 && st.points[n-2].Sequence == p.Sequence {
				st.points = st.points[:n-1] // only the first and the last time count
			}
		}
	}
	if st.points = append(st.points, p); len(st.points) > maxPoints {
		st.points = slices.Clone(thin(st.points))
	}
}

// pointsOf returns the points of the records first to last; the last point is that of the record last. all is the point of
// what is being shipped. If the run ends earlier, the time of its last point is that of the last one added before: later records
// are in the next run, which may never ship.
func (st *stream) pointsOf(first, last uint64, all point) []point {
	st.mu.Lock()
	defer st.mu.Unlock()
	var points []point
	at := st.end()
	if last == all.Sequence {
		at = max(at, all.Time)
	}
	for _, p := range st.points {
		if p.Sequence > last {
			break
		}
		if p.Sequence == last {
			at = p.Time
			break
		}
		if p.Sequence >= first {
			points = append(points, p)
		}
		at = max(at, p.Time)
	}
	return thin(append(points, point{at, last}))
}

// firstPoint is the time of the first point; now when there is none.
func (st *stream) firstPoint(now int64) int64 {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.points) > 0 {
		return min(now, st.points[0].Time)
	}
	return now
}

// end is the time up to which the history is shipped.
func (st *stream) end() int64 {
	h := st.manifest.last()
	if n := len(st.pending); n > 0 {
		return st.pending[n-1].To
	}
	if n := len(h.Runs); n > 0 {
		return h.Runs[n-1].To
	}
	return h.Began
}

// forget drops the points of what was shipped.
func (st *stream) forget() {
	st.mu.Lock()
	defer st.mu.Unlock()
	i := 0
	for i < len(st.points) && st.points[i].Sequence < st.next {
		i++
	}
	st.points = st.points[i:]
}
