package gate

import (
	"os"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
)

// kindsHost remembers what kind each metric is.
type kindsHost struct {
	*fakeHost
	kinds map[string]string
}

func (h kindsHost) DefineMetric(kind MetricKind, name string) MetricID {
	h.kinds[name] = [...]string{Counter: "counter", Gauge: "gauge", Histogram: "histogram"}[kind]
	return h.fakeHost.DefineMetric(kind, name)
}

// kindByName returns the kind that docs/reference/METRICS.md gives a metric by its ending.
func kindByName(name string) string {
	switch {
	case strings.HasSuffix(name, "_total"):
		return "counter"
	case strings.HasSuffix(name, "_microseconds"), strings.HasSuffix(name, "_milliseconds"):
		return "histogram"
	}
	return "gauge"
}

// docs/reference/METRICS.md names all metrics and no others, and the properties of access logs.
func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	h := kindsHost{newFakeHost(t), map[string]string{}}
	if err := New(h).Start(nil); err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	metrics, _, _ := strings.Cut(string(text), "## Recorded metrics")
	for line := range strings.SplitSeq(metrics, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 4 || !strings.HasPrefix(cells[1], " `oncegate_") {
			continue
		}
		name := strings.Trim(cells[1], " `")
		if documented[name] {
			t.Errorf("%s is there twice", name)
		}
		documented[name] = true
		if kind := kindByName(name); kind != h.kinds[name] {
			t.Errorf("%s is documented as a %s by its ending, it is a %q", name, kind, h.kinds[name])
		}
	}
	for name := range h.kinds {
		if !documented[name] {
			t.Errorf("%s is not documented", name)
		}
	}
	for _, status := range []api.Code{
		statusExecuted, statusReplayed, statusBypassed, statusNotSent, statusReleased, statusUnknown,
		api.CodePending, api.CodeOutcomeUnknown, api.CodeFingerprintMismatch, api.CodeAnswerNotRecorded, api.CodeEncodingNotAccepted, api.CodeInvalidKey, api.CodeKeyRequired,
		api.CodeInvalidRequest, api.CodeUnsupportedProtocol, api.CodeBodyModeUnavailable, api.CodeManagerUnavailable, api.CodeLedgerFull, api.CodeQuarantine, api.CodeRecordUnreadable, api.CodeOverloaded,
		api.CodeDurability, api.CodeWrongHome, api.CodeHomeUnavailable, api.CodeHomeUnanswered,
	} {
		if !strings.Contains(string(text), "`"+string(status)+"`") {
			t.Errorf("the status %s is not documented", status)
		}
	}
	for _, name := range []string{propertyStatus, propertyUpstream, propertyClient, propertySequence, propertyNonce} {
		if !strings.Contains(string(text), "FILTER_STATE(wasm."+name+":PLAIN)") {
			t.Errorf("the property %s is not documented", name)
		}
	}
}
