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
	for line := range strings.SplitSeq(string(text), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.HasPrefix(cells[1], " `oncegate_") {
			continue
		}
		name := strings.Trim(cells[1], " `")
		if documented[name] {
			t.Errorf("%s is there twice", name)
		}
		documented[name] = true
		if kind := strings.TrimSpace(cells[2]); kind != h.kinds[name] {
			t.Errorf("%s is documented as a %s, it is a %q", name, kind, h.kinds[name])
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
