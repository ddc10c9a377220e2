package tracing

import (
	"strconv"
	"strings"
	"testing"
)

// wanted is what Start makes of the environment before it makes a provider.
func wanted(env map[string]string) (bool, error) {
	e := environment(func(name string) string { return env[name] })
	want, err := e.wanted()
	if want && err == nil {
		err = e.check()
	}
	return want && err == nil, err
}

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
		"blank":            {"OTEL_EXPORTER_OTLP_ENDPOINT= ", false, ""},
		"traces' protocol": {"OTEL_EXPORTER_OTLP_PROTOCOL=grpc OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf OTEL_TRACES_EXPORTER=otlp", true, ""},
	} {
		env := map[string]string{}
		for _, pair := range strings.Fields(c.env) {
			k, v, _ := strings.Cut(pair, "=")
			env[k] = v
		}
		got, err := wanted(env)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
}

// A wrong value is refused with its name, the value and what is allowed. The SDK takes most of them for its default, and
// panics or runs in circles with others.
func TestWrongValues(t *testing.T) {
	for _, c := range []struct{ name, value, must string }{
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "must be a URL"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "127.0.0.1:4318", "must be a URL"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://", "must be a URL"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://:4318", "must be a URL"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "ftp://collector", "must be a URL"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:65536", "must be a URL"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:0", "must be a URL"},
		{"OTEL_EXPORTER_OTLP_INSECURE", "yes", "must be true or false"},
		{"OTEL_EXPORTER_OTLP_COMPRESSION", "zip", "must be gzip or none"},
		{"OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "must be a whole number of milliseconds"},
		{"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0", "must be a whole number of milliseconds"},
		{"OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere.pem", "must be a file with certificates in PEM"},
		{"OTEL_EXPORTER_OTLP_CLIENT_KEY", "/nowhere.pem", "must be files with a certificate and its key"},
		{"OTEL_RESOURCE_ATTRIBUTES", "region", "must be name=value"},
		{"OTEL_RESOURCE_ATTRIBUTES", "region=%zz", "must be name=value"},
		{"OTEL_BSP_MAX_QUEUE_SIZE", "-5", "must be a whole number from 1 to 1048576"},
		{"OTEL_BSP_MAX_QUEUE_SIZE", "9999999999", "must be a whole number from 1 to 1048576"},
		{"OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "many", "must be a whole number from 1"},
		{"OTEL_BSP_MAX_QUEUE_SIZE", " 5", "must be a whole number from 1"},
		{"OTEL_BSP_SCHEDULE_DELAY", "0", "must be a whole number from 1"},
		{"OTEL_SPAN_LINK_COUNT_LIMIT", "many", "must be a whole number from 0 to 2147483647"},
		{"OTEL_SPAN_LINK_COUNT_LIMIT", "-1", "must be a whole number from 0"},
		{"OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", "1e3", "must be a whole number from 0"},
		{"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "128 ", "must be a whole number from 0"},
		{"OTEL_ATTRIBUTE_COUNT_LIMIT", "9999999999", "must be a whole number from 0"},
		{"OTEL_SPAN_EVENT_COUNT_LIMIT", "0x80", "must be a whole number from 0"},
		{"OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "none", "must be a whole number from 0"},
		{"OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "1k", "must be a whole number from 0"},
		{"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "64.0", "must be a whole number from 0"},
		{"OTEL_TRACES_SAMPLER", "sometimes", "must be always_on"},
	} {
		_, err := wanted(map[string]string{"OTEL_TRACES_EXPORTER": "otlp", c.name: c.value})
		if err == nil || !strings.Contains(err.Error(), c.name+" "+strconv.Quote(c.value)) || !strings.Contains(err.Error(), c.must) {
			t.Errorf("%s=%s: %v", c.name, c.value, err)
		}
		if _, err := wanted(map[string]string{c.name: c.value, "OTEL_TRACES_EXPORTER": "none"}); err != nil {
			t.Errorf("%s=%s without spans: %v", c.name, c.value, err)
		}
	}
	for _, ratio := range []string{"1.5", "-1", "NaN", "half"} {
		if _, err := wanted(map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": ratio}); err == nil {
			t.Errorf("a sampler took the ratio %s", ratio)
		}
	}
	for _, headers := range []map[string]string{ // which are credentials
		{"OTEL_EXPORTER_OTLP_HEADERS": "secret"},
		{"OTEL_EXPORTER_OTLP_HEADERS": "secret", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "a=b"}, // the SDK would log it
		{"OTEL_EXPORTER_OTLP_HEADERS": "authorization: secret=a"},
		{"OTEL_EXPORTER_OTLP_HEADERS": "a=secret%0Ab"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "https://user:secret@collector:4318"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "https://user:secret@collector:4318x"},
	} {
		headers["OTEL_TRACES_EXPORTER"] = "otlp"
		if _, err := wanted(headers); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v: %v", headers, err)
		}
	}
	for _, scheme := range []map[string]string{
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector", "OTEL_EXPORTER_OTLP_INSECURE": "true"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://collector", "OTEL_EXPORTER_OTLP_INSECURE": "TRUE"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector", "OTEL_EXPORTER_OTLP_INSECURE": "false"},
	} {
		if _, err := wanted(scheme); err == nil || !strings.Contains(err.Error(), "OTEL_EXPORTER_OTLP_INSECURE") {
			t.Errorf("%v, where the exporter takes another scheme than the URL's: %v", scheme, err)
		}
	}
	for _, good := range []map[string]string{
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "https://[::1]:4318/otlp", "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Basic%20abc==,x=y", "OTEL_BSP_MAX_QUEUE_SIZE": "1"},
		{"OTEL_TRACES_SAMPLER": "TraceIDRatio", "OTEL_TRACES_SAMPLER_ARG": "0.25", "OTEL_RESOURCE_ATTRIBUTES": "a=b,c=d%20e", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector", "OTEL_EXPORTER_OTLP_INSECURE": "true"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "HTTPS://collector", "OTEL_EXPORTER_OTLP_INSECURE": "False"},
		{"OTEL_SPAN_LINK_COUNT_LIMIT": "0", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "128", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "2147483647", "OTEL_SPAN_EVENT_COUNT_LIMIT": " "},
		{"OTEL_TRACES_SAMPLER": "always_off", "OTEL_TRACES_SAMPLER_ARG": "for another sampler"},
	} {
		good["OTEL_TRACES_EXPORTER"] = "otlp"
		if want, err := wanted(good); !want || err != nil {
			t.Errorf("%v: %v", good, err)
		}
	}
}

// Without a collector's address spans go where OpenTelemetry says, which is not the SDK's default.
func TestDefaultCollectorIsPlain(t *testing.T) {
	for text, want := range map[string]bool{"": true, "OTEL_EXPORTER_OTLP_ENDPOINT=https://c": false, "OTEL_EXPORTER_OTLP_INSECURE=false": false} {
		name, value, _ := strings.Cut(text, "=")
		env := environment(func(n string) string {
			if n == name {
				return value
			}
			return ""
		})
		if got := env.insecure(); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
