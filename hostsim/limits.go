package hostsim

// Limits on what one guest can make the host keep. Envoy has no such limits. A working filter stays far below them, and
// a broken one must not bring the process down. Beyond a limit the host function returns InternalFailure and changes
// nothing.
const (
	sharedDataLimit = 2 << 30   // bytes of keys and values of a process
	queueLimit      = 1 << 16   // items in one queue
	queueBytesLimit = 64 << 20  // bytes in one queue
	queuesLimit     = 1 << 16   // queues of a process
	metricsPerVM    = 1 << 16   // metrics that one VM defines
	nameLimit       = 4 << 10   // bytes of the name of a metric or queue
	headerMapLimit  = 16 << 20  // bytes of a header map that a guest has changed
	bufferEditLimit = 256 << 20 // bytes of a body that a guest has changed
	maxCallsPerVM   = 1 << 16   // callouts in progress
	callBytesLimit  = 256 << 20 // bytes of their requests
	propertyLimit   = 1 << 20   // bytes of a stream's own properties
	afterLimit      = 1 << 12   // resumes and similar actions that one callback asks for
	logLineLimit    = 64 << 10  // bytes of a log line; the rest is cut off
	logKeptLimit    = 4 << 10   // bytes of a log line that is remembered
)

// cut shortens a log line.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return s[:limit] + "...(cut)"
}
