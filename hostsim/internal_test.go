package hostsim

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The CAS counter wraps around without ever handing out 0, which means "no CAS".
func TestCASCounterSkipsZero(t *testing.T) {
	d := newSharedData()
	d.lastCAS = math.MaxUint32 - 1
	var got []uint32
	for range 3 {
		if st := d.set("", "k", nil, 0); st != StatusOK {
			t.Fatal(st)
		}
		_, cas, _ := d.get("", "k")
		got = append(got, cas)
	}
	if got[0] != math.MaxUint32 || got[1] != 1 || got[2] != 2 {
		t.Errorf("numbers are %v", got)
	}
}

// Values are copied in: a caller that reuses its buffer changes nothing.
func TestSharedDataCopies(t *testing.T) {
	d := newSharedData()
	buf := []byte("abc")
	d.set("", "k", buf, 0)
	buf[0] = 'x'
	v, _, _ := d.get("", "k")
	if string(v) != "abc" {
		t.Errorf("value is %q", v)
	}
}

func TestMetricNamesAreMadeValidAndUnique(t *testing.T) {
	s := newMetrics()
	for _, name := range []string{"a.b-c d", "1st", "", "ünï", "_x", "a.b_c d"} {
		s.define(MetricCounter, name).value.Store(1)
	}
	s.define(MetricGauge, "a.b-c d").value.Store(2)
	h := s.define(MetricHistogram, "lat")
	for _, v := range []uint64{0, 1, 2, 4000000} {
		h.record(v)
	}
	var b strings.Builder
	if err := s.writePrometheus(&b); err != nil {
		t.Fatal(err)
	}
	want := `# TYPE _x counter
_x{} 1
# TYPE a_b_c_d counter
a_b_c_d{} 1
# TYPE a_b_c_d gauge
a_b_c_d{} 2
# TYPE a_b_c_d counter
a_b_c_d{} 1
# TYPE lat histogram
`
	if !strings.HasPrefix(b.String(), want) {
		t.Errorf("exposition is\n%s", b.String())
	}
	for _, line := range []string{`lat_bucket{le="0.5"} 1`, `lat_bucket{le="1"} 2`, `lat_bucket{le="5"} 3`, `lat_bucket{le="3600000"} 3`, `lat_bucket{le="+Inf"} 4`, "lat_sum{} 4000003", "lat_count{} 4", "__n__{} 1"} {
		if !strings.Contains(b.String(), line+"\n") {
			t.Errorf("no line %s in\n%s", line, b.String())
		}
	}
	if strings.Contains(b.String(), "1st") {
		t.Error("a name that starts with a digit was printed")
	}
}

// Queues and metrics do not grow without bound.
func TestQueuesAndMetricsAreBounded(t *testing.T) {
	q := newSharedQueues()
	th := &thread{loop: newLoop(&idleness{}, nil)}
	id, st := q.register("", "q", th, 1)
	if st != StatusOK {
		t.Fatal(st)
	}
	for range queueLimit {
		if st := q.enqueue(id, nil); st != StatusOK {
			t.Fatal(st)
		}
	}
	if st := q.enqueue(id, nil); st != StatusInternalFailure {
		t.Errorf("one item too many: %v", st)
	}
	if _, st := q.dequeue(id); st != StatusOK {
		t.Error(st)
	}
	if st := q.enqueue(id, nil); st != StatusOK {
		t.Errorf("after a dequeue: %v", st)
	}
	big, _ := q.register("", "big", th, 1)
	for range queueBytesLimit >> 20 {
		if st := q.enqueue(big, make([]byte, 1<<20)); st != StatusOK {
			t.Fatal(st)
		}
	}
	if st := q.enqueue(big, []byte("x")); st != StatusInternalFailure {
		t.Errorf("one byte too many: %v", st)
	}
	if _, st := q.register("", strings.Repeat("x", nameLimit+1), th, 1); st != StatusInternalFailure {
		t.Errorf("a long name: %v", st)
	}
	for i := len(q.queues); i < queuesLimit; i++ {
		q.register("", strconv.Itoa(i), th, 1)
	}
	if _, st := q.register("", "one more", th, 1); st != StatusInternalFailure {
		t.Errorf("one queue too many: %v", st)
	}
	d := newSharedData()
	d.set("v", "key", []byte("value"), 0)
	d.set("v", "key", []byte("v"), 0)
	if d.bytes != 4 {
		t.Errorf("%d bytes are counted", d.bytes)
	}
	d.bytes = sharedDataLimit - 1
	if st := d.set("v", "key", []byte("va"), 0); st != StatusOK {
		t.Errorf("the last byte: %v", st)
	}
	if st := d.set("v", "k", nil, 0); st != StatusInternalFailure {
		t.Errorf("a byte too many: %v", st)
	}
	d.bytes = 5
	if d.deleteVM("v"); d.bytes != 0 {
		t.Errorf("%d bytes are left", d.bytes)
	}
	s, m := newMetrics(), newVMMetrics()
	if _, st := m.define(s, MetricGauge, strings.Repeat("x", nameLimit+1)); st != StatusInternalFailure {
		t.Errorf("a long name: %v", st)
	}
	for range metricsPerVM {
		if _, st := m.define(s, MetricGauge, "g"); st != StatusOK {
			t.Fatal(st)
		}
	}
	if _, st := m.define(s, MetricGauge, "g"); st != StatusInternalFailure {
		t.Errorf("one metric too many: %v", st)
	}
}

// Two hosts on one clock give each other work: the clock waits until both are done,
// not for each of them once.
func TestClockWaitsForHostsThatFeedEachOther(t *testing.T) {
	const turns = 1000
	clock := NewVirtualClock(time.Time{})
	var loops [2]*loop
	var turn int // belongs to whose turn it is
	for i := range loops {
		idle := new(idleness)
		loops[i] = newLoop(idle, func(*event) {
			if turn++; turn < turns {
				loops[1-i].post(event{})
			}
		})
		detach := clock.attach(attached{settle: func() { <-idle.wait() }, posted: idle.posted.Load})
		defer detach()
	}
	for _, l := range loops {
		go l.run()
		defer func() { l.stop(); <-l.done }()
	}
	loops[0].post(event{})
	clock.Advance(0)
	if turn != turns {
		t.Errorf("the clock moved on after %d of %d turns", turn, turns)
	}
}
