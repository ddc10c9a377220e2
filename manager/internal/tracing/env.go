package tracing

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// maxQueue bounds OTEL_BSP_MAX_QUEUE_SIZE, and so the memory that spans take while the collector is away.
const maxQueue = 1 << 20

// numbers are the variables of the batch processor and of the limits of spans, with their bounds. The SDK takes the default for what
// is no number, and a negative limit for none.
var numbers = map[string][2]int{
	"OTEL_BSP_SCHEDULE_DELAY":                {1, math.MaxInt32},
	"OTEL_BSP_EXPORT_TIMEOUT":                {1, math.MaxInt32},
	"OTEL_BSP_MAX_EXPORT_BATCH_SIZE":         {1, maxQueue},
	"OTEL_BSP_MAX_QUEUE_SIZE":                {1, maxQueue},
	"OTEL_ATTRIBUTE_COUNT_LIMIT":             {0, math.MaxInt32},
	"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT":      {0, math.MaxInt32},
	"OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT":       {0, math.MaxInt32},
	"OTEL_LINK_ATTRIBUTE_COUNT_LIMIT":        {0, math.MaxInt32},
	"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT":        {0, math.MaxInt32},
	"OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": {0, math.MaxInt32},
	"OTEL_SPAN_EVENT_COUNT_LIMIT":            {0, math.MaxInt32},
	"OTEL_SPAN_LINK_COUNT_LIMIT":             {0, math.MaxInt32},
}

// environment looks up a variable. Blank values count as absent, as OpenTelemetry says.
type environment func(name string) string

func (env environment) get(name string) string { return strings.TrimSpace(env(name)) }

// exporter looks up a variable of the exporter: that of traces wins over that of all signals.
func (env environment) exporter(what string) (name, value string) {
	for _, name := range exporterNames(what) {
		if v := env.get(name); v != "" {
			return name, v
		}
	}
	return "", ""
}

func exporterNames(what string) []string {
	return []string{"OTEL_EXPORTER_OTLP_TRACES_" + what, "OTEL_EXPORTER_OTLP_" + what}
}

// wanted reports whether the environment asks for spans.
func (env environment) wanted() (bool, error) {
	if strings.EqualFold(env.get("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	_, endpoint := env.exporter("ENDPOINT")
	switch v := env.get("OTEL_TRACES_EXPORTER"); v {
	case "none":
		return false, nil
	case "":
		return endpoint != "", nil
	case "otlp":
		return true, nil
	default:
		return false, wrong("OTEL_TRACES_EXPORTER", v, "must be otlp or none")
	}
}

// wrong does not show what is before an @, which may be a password.
func wrong(name, value, must string) error {
	if at := strings.LastIndexByte(value, '@'); at >= 0 {
		value = "..." + value[at:]
	}
	return fmt.Errorf("%s %q: %s", name, value, must)
}

// check refuses values that the SDK would take for others, or that would stop the manager later. The error names the
// variable.
func (env environment) check() error {
	for _, c := range []struct {
		what string
		must string
		ok   func(value string) bool
	}{
		{"ENDPOINT", "must be a URL with http or https, a host, a port from 1 to 65535 if any, and no user, such as http://collector:4318", isURL},
		{"INSECURE", "must be true or false", func(v string) bool { return oneOf("true", "false")(strings.ToLower(v)) }},
		{"PROTOCOL", "must be http/protobuf", oneOf("http/protobuf")},
		{"COMPRESSION", "must be gzip or none", oneOf("gzip", "none")},
		{"TIMEOUT", fmt.Sprintf("must be a whole number of milliseconds from 1 to %d", math.MaxInt32), func(v string) bool { return isNumber(v, 1, math.MaxInt32) }},
		{"CERTIFICATE", "must be a file with certificates in PEM", isCertificates},
	} {
		if name, v := env.exporter(c.what); v != "" && !c.ok(v) {
			return wrong(name, v, c.must)
		}
	}
	for _, name := range exporterNames("HEADERS") { // the SDK reads both, and logs what it cannot use: they are credentials
		if !isHeaders(env.get(name)) {
			return fmt.Errorf("%s: must be name=value,... with names and values of HTTP headers, the values percent-encoded", name)
		}
	}
	_, endpoint := env.exporter("ENDPOINT")
	if name, v := env.exporter("INSECURE"); v != "" && endpoint != "" && strings.EqualFold(v, "true") != strings.HasPrefix(strings.ToLower(endpoint), "http:") {
		return wrong(name, v, "must be true with http and false with https in the collector's URL, or absent") // the SDK would follow it
	}
	if err := env.checkClientCertificate(); err != nil {
		return err
	}
	if v := env.get("OTEL_RESOURCE_ATTRIBUTES"); !isPairs(v) {
		return wrong("OTEL_RESOURCE_ATTRIBUTES", v, "must be name=value,... with percent-encoded values")
	}
	for name, bounds := range numbers {
		if v := env(name); strings.TrimSpace(v) != "" && !isNumber(v, bounds[0], bounds[1]) { // the SDK does not trim it
			return wrong(name, v, fmt.Sprintf("must be a whole number from %d to %d", bounds[0], bounds[1]))
		}
	}
	return env.checkSampler()
}

// checkSampler checks what OTEL_TRACES_SAMPLER names, and its argument.
func (env environment) checkSampler() error {
	const sampler, argument = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
	v := strings.ToLower(env.get(sampler))
	if !oneOf("", "always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio")(v) {
		return wrong(sampler, v, "must be always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off or parentbased_traceidratio")
	}
	if a := env.get(argument); a != "" && strings.HasSuffix(v, "traceidratio") {
		if ratio, err := strconv.ParseFloat(a, 64); err != nil || !(ratio >= 0 && ratio <= 1) {
			return wrong(argument, a, "must be a number from 0 to 1")
		}
	}
	return nil
}

// checkClientCertificate checks each pair as the exporter reads it.
func (env environment) checkClientCertificate() error {
	certificates, keys := exporterNames("CLIENT_CERTIFICATE"), exporterNames("CLIENT_KEY")
	for i := range certificates {
		certificate, key := env.get(certificates[i]), env.get(keys[i])
		if certificate == "" && key == "" {
			continue
		}
		if _, err := tls.LoadX509KeyPair(certificate, key); err != nil {
			return fmt.Errorf("%s %q and %s %q: must be files with a certificate and its key in PEM: %w", certificates[i], certificate, keys[i], key, err)
		}
	}
	return nil
}

func isURL(v string) bool {
	u, err := url.Parse(v)
	if err != nil || !oneOf("http", "https")(u.Scheme) || u.Hostname() == "" || u.User != nil {
		return false
	}
	return u.Port() == "" || isNumber(u.Port(), 1, math.MaxUint16)
}

func oneOf(values ...string) func(string) bool {
	return func(v string) bool { return slices.Contains(values, v) }
}

func isNumber(v string, least, most int) bool {
	n, err := strconv.Atoi(v)
	return err == nil && n >= least && n <= most
}

func isCertificates(v string) bool {
	text, err := os.ReadFile(v)
	return err == nil && x509.NewCertPool().AppendCertsFromPEM(text)
}

// isPairs reports whether v is a list of names with values, as far as it is not empty.
func isPairs(v string) bool {
	return arePairs(v, func(name, _ string) bool { return name != "" })
}

// isHeaders is isPairs for the headers of a request.
func isHeaders(v string) bool {
	return arePairs(v, func(name, value string) bool {
		return httpguts.ValidHeaderFieldName(name) && httpguts.ValidHeaderFieldValue(value)
	})
}

func arePairs(v string, ok func(name, value string) bool) bool {
	if v == "" {
		return true
	}
	for pair := range strings.SplitSeq(v, ",") {
		name, value, found := strings.Cut(pair, "=")
		value, err := url.PathUnescape(value)
		if !found || err != nil || !ok(strings.TrimSpace(name), strings.TrimSpace(value)) {
			return false
		}
	}
	return true
}

// insecure reports whether the exporter must be set to http. It takes https where no variable says which, and
// OpenTelemetry's default is http://localhost:4318.
func (env environment) insecure() bool {
	_, endpoint := env.exporter("ENDPOINT")
	_, insecure := env.exporter("INSECURE")
	return endpoint == "" && insecure == ""
}
