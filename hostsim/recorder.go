package hostsim

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// recorderLimit bounds a recorder's memory. Later lines are only counted.
const recorderLimit = 1 << 20

// Recorder records the calls between host and guest: one line per callback with its arguments, an indented line per
// host call with arguments and answer, and a line with the callback's result. Compared with a stored transcript
// (hostsimtest.Golden) it shows in review how a filter's use of the host changes. It is safe for concurrent use; lines
// of one thread stay in order.
type Recorder struct {
	mu      sync.Mutex
	lines   []recordedLine
	dropped int
}

type recordedLine struct{ thread, text string }

func (r *Recorder) add(thread, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.lines) >= recorderLimit {
		r.dropped++
		return
	}
	r.lines = append(r.lines, recordedLine{thread, text})
}

// Text returns the lines of the given threads ("canary", "main", "worker-0"), each with its thread's name in front.
// Without arguments it returns all lines.
func (r *Recorder) Text(threads ...string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for _, l := range r.lines {
		if len(threads) == 0 || slices.Contains(threads, l.thread) {
			b.WriteString(l.thread + " " + l.text + "\n")
		}
	}
	if r.dropped > 0 {
		fmt.Fprintf(&b, "(%d more lines were not kept)\n", r.dropped)
	}
	return b.String()
}

// Reset discards what was recorded.
func (r *Recorder) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines, r.dropped = nil, 0
}

// quote quotes a value. Of a long value it shows the beginning and the length.
func quote[T string | []byte](v T) string {
	const most = 200
	if len(v) > most {
		return fmt.Sprintf("%q...(%d bytes)", string(v[:most]), len(v))
	}
	return fmt.Sprintf("%q", string(v))
}

var (
	mapNames    = []string{"request_headers", "request_trailers", "response_headers", "response_trailers", "grpc_initial_metadata", "grpc_trailing_metadata", "call_headers", "call_trailers"}
	bufferNames = []string{"request_body", "response_body", "downstream_data", "upstream_data", "call_body", "grpc_message", "vm_config", "plugin_config", "call_data"}
	actionNames = []string{"Continue", "Pause"}
)

// String is the map's name in transcripts.
func (t MapType) String() string { return nameOf("map", mapNames, uint32(t)) }

// String is the buffer's name in transcripts.
func (t BufferType) String() string { return nameOf("buffer", bufferNames, uint32(t)) }

// String is the action's name in transcripts.
func (a Action) String() string { return nameOf("Action", actionNames, uint32(a)) }

func nameOf(kind string, names []string, v uint32) string {
	if uint64(v) < uint64(len(names)) {
		return names[v]
	}
	return fmt.Sprintf("%s(%d)", kind, v)
}

func (h Headers) transcript() string {
	parts := make([]string, len(h))
	for i, p := range h {
		parts[i] = p[0] + ": " + quote(p[1])
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// called records that a callback begins.
func (r *Recorder) called(thread string, f *callback, context uint32, args []uint32) {
	shown := make([]string, len(args))
	for i, a := range args {
		shown[i] = fmt.Sprint(a)
		if f.result == actionResult && i == 1 { // the end of stream
			shown[i] = fmt.Sprint(a != 0)
		}
	}
	r.add(thread, fmt.Sprintf("#%d %s(%s)", context, strings.TrimPrefix(f.name, "proxy_"), strings.Join(shown, ", ")))
}

// returned records how a callback has ended. Most have no result.
func (r *Recorder) returned(thread string, f *callback, result uint32, err error) {
	switch {
	case err != nil:
		first, _, _ := strings.Cut(err.Error(), "\n")
		r.add(thread, "  => trap: "+first)
	case f.result == boolResult:
		r.add(thread, fmt.Sprint("  => ", result != 0))
	case f.result == actionResult:
		r.add(thread, fmt.Sprint("  => ", Action(result)))
	}
}
