package hostsim_test

import (
	"fmt"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
)

// Logs has lines of all levels, the last 1000 of them; lesser lines push no warning out of Warnings.
func TestLogsAndWarningsAreKept(t *testing.T) {
	r := newRig(t, nativeScript())
	r.start(hostsim.Config{})
	r.run("rh=log:3:careful")
	r.run("rh=log:0:trace")
	logs := r.h.Logs()
	last := logs[len(logs)-2:] // the script says what became of each of its calls
	want(t, "lines", fmt.Sprint(last), "[{worker-0 0 trace} {worker-0 2 rh: log:0:trace = Ok}]")
	for range 600 {
		r.run("rh=log:1:x")
	}
	logs = r.h.Logs()
	want(t, "lines that are kept", len(logs), 1000)
	want(t, "last line", logs[999].Message, "rh: log:1:x = Ok")
	want(t, "warnings", fmt.Sprint(r.h.Warnings()), "[{worker-0 3 careful}]")
	r.logs.take("worker-0")
}

// A metric is found by its name; a counter comes first.
func TestMetricIsFoundByName(t *testing.T) {
	r := newRig(t, nativeScript())
	r.start(hostsim.Config{})
	r.run("rh=define:1:m,record:m:7,define:2:h,record:h:5,record:h:6")
	r.run("rh=define:0:m,inc:m:3")
	p := r.h.Process()
	for name, expected := range map[string]string{
		"m": "{0 m 3 0} true", "h": "{2 h 2 11} true", "none": "{0  0 0} false",
	} {
		m, ok := p.Metric(name)
		want(t, name, fmt.Sprint(m, ok), expected)
	}
	r.logs.take("worker-0")
}
