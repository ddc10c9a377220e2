package gate

// Bounds of the request's headers that go along with its calls. Headers beyond them are
// left out.
const (
	maxTraceHeaders = 9
	maxTraceBytes   = 1024
)

// traceHeaders returns the headers that link a call to the request that causes it. Their values
// are views of the host's header block.
func traceHeaders(headers [][2]string) (trace [][2]string) {
	count, size := 0, 0
	for i := range headers {
		if traceName(headers[i][0]) != "" {
			count++
		}
	}
	if count == 0 {
		return nil
	}
	trace = make([][2]string, 0, min(count, maxTraceHeaders))
	for i := range headers {
		name, value := traceName(headers[i][0]), headers[i][1]
		if name == "" || len(trace) == maxTraceHeaders || size+len(value) > maxTraceBytes || !printable(value) {
			continue
		}
		size += len(value)
		trace = append(trace, [2]string{name, value})
	}
	return trace
}

var traceNames = [...]string{"x-request-id", "traceparent", "tracestate", "b3",
	"x-b3-traceid", "x-b3-spanid", "x-b3-parentspanid", "x-b3-sampled", "x-b3-flags"}

// traceName returns the name of a header that carries a request's identity, as Envoy, W3C or
// Zipkin define it, and "" for other headers. The returned names are constants, so no copy of
// them is needed.
func traceName(name string) string {
	// Most headers differ in the first byte, which costs less to compare than all names.
	if name == "" || name[0] != 'x' && name[0] != 't' && name[0] != 'b' {
		return ""
	}
	for i := range traceNames {
		if traceNames[i] == name {
			return traceNames[i]
		}
	}
	return ""
}

// printable reports whether a value may be sent in a header. A host need not have checked that.
func printable(value string) bool {
	for i := 0; i < len(value); i++ {
		if c := value[i]; c < 0x20 && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
