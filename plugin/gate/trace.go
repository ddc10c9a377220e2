package gate

import "strings"

// Bounds of the request's headers that go along with its calls. Headers beyond them are
// left out.
const (
	maxTraceHeaders = 9
	maxTraceBytes   = 1024
)

// traceHeaders returns the headers that link a call to the request that causes it. They
// are views of the host's header block.
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

// traces tells whether a header carries a request's identity, as Envoy, W3C or Zipkin define it.
func traces(name string) bool {
	switch name {
	case "x-request-id", "traceparent", "tracestate", "b3",
		"x-b3-traceid", "x-b3-spanid", "x-b3-parentspanid", "x-b3-sampled", "x-b3-flags":
		return true
	}
	return false
}

// printable tells whether a value may be sent in a header. A host need not have checked that.
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
