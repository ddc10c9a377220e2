package gate

import "strings"

// Bounds of the headers of a request that go along with its calls. What is beyond them
// stays out.
const (
	maxTraceHeaders = 9
	maxTraceBytes   = 1024
)

// traceHeaders returns the headers that tie a call to the request that causes it. They
// are views of what the host handed over.
func traceHeaders(headers [][2]string) (trace [][2]string) {
	size := 0
	for i := range headers {
		name, value := headers[i][0], headers[i][1]
		if !traces(name) || len(trace) == maxTraceHeaders || size+len(value) > maxTraceBytes || !printable(value) {
			continue
		}
		size += len(value)
		trace = append(trace, [2]string{name, value})
	}
	return trace
}

// traces tells whether a header carries a request's identity: Envoy's own, W3C's, Zipkin's.
func traces(name string) bool {
	switch name {
	case "x-request-id", "traceparent", "tracestate", "b3",
		"x-b3-traceid", "x-b3-spanid", "x-b3-parentspanid", "x-b3-sampled", "x-b3-flags":
		return true
	}
	return false
}

// printable tells whether the value may stand in a header, which a host need not have looked at.
func printable(value string) bool {
	for i := 0; i < len(value); i++ {
		if c := value[i]; c < 0x20 && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// ownTrace copies the headers.
func ownTrace(trace [][2]string) {
	for i := range trace {
		trace[i] = [2]string{strings.Clone(trace[i][0]), strings.Clone(trace[i][1])}
	}
}
