package tracing

import (
	"strings"
	"testing"
)

// The environment decides as the OpenTelemetry specification says.
func TestWanted(t *testing.T) {
	for name, c := range map[string]struct {
		env  string
		want bool
		err  string
	}{
		"nothing":          {"", false, ""},
		"endpoint":         {"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", true, ""},
		"traces' endpoint": {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://c:4318/v1/traces", true, ""},
		"exporter":         {"OTEL_TRACES_EXPORTER=otlp", true, ""},
		"none":             {"OTEL_TRACES_EXPORTER=none OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", false, ""},
		"disabled":         {"OTEL_SDK_DISABLED=true OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", false, ""},
		"another exporter": {"OTEL_TRACES_EXPORTER=zipkin", false, "must be otlp or none"},
		"grpc":             {"OTEL_EXPORTER_OTLP_PROTOCOL=grpc OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4317", false, "must be http/protobuf"},
		"only a protocol":  {"OTEL_EXPORTER_OTLP_PROTOCOL=grpc", false, ""},
	} {
		env := map[string]string{}
		for _, pair := range strings.Fields(c.env) {
			k, v, _ := strings.Cut(pair, "=")
			env[k] = v
		}
		got, err := wanted(func(name string) string { return env[name] })
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
}
