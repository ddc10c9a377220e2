package hostsim

import (
	"fmt"
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
		wanted := len(threads) == 0
		for _, t := range threads {
			wanted = wanted || t == l.thread
		}
		if wanted {
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

var mapNames = [...]string{"request_headers", "request_trailers", "response_headers", "response_trailers", "grpc_initial_metadata", "grpc_trailing_metadata", "call_headers", "call_trailers"}

// String is the map's name in transcripts.
func (t MapType) String() string {
	if int(t) < len(mapNames) {
		return mapNames[t]
	}
	return fmt.Sprintf("map(%d)", uint32(t))
}

var bufferNames = [...]string{"request_body", "response_body", "downstream_data", "upstream_data", "call_body", "grpc_message", "vm_config", "plugin_config", "call_data"}

// String is the buffer's name in transcripts.
func (t BufferType) String() string {
	if int(t) < len(bufferNames) {
		return bufferNames[t]
	}
	return fmt.Sprintf("buffer(%d)", uint32(t))
}

// String is the action's name in transcripts.
func (a Action) String() string {
	switch a {
	case ActionContinue:
		return "Continue"
	case ActionPause:
		return "Pause"
	}
	return fmt.Sprintf("Action(%d)", uint32(a))
}

func (h Headers) transcript() string {
	parts := make([]string, len(h))
	for i, p := range h {
		parts[i] = p[0] + ": " + quote(p[1])
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// recordingGuest records callbacks.
type recordingGuest struct {
	g   Guest
	v   *vm
	rec *Recorder
}

func unwrapGuest(g Guest) Guest {
	if r, ok := g.(*recordingGuest); ok {
		return r.g
	}
	return g
}

func (r *recordingGuest) call(name string, context uint32, args ...any) {
	var b strings.Builder
	fmt.Fprintf(&b, "#%d %s(", context, name)
	for i, a := range args {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprint(&b, a)
	}
	b.WriteString(")")
	r.rec.add(r.v.name, b.String())
}

// ended records how a callback without a result has ended.
func (r *recordingGuest) ended(err error) error {
	if err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n")
		r.rec.add(r.v.name, "  => trap: "+first)
	}
	return err
}

// agreed records the result of a callback that agrees or does not, acted that of one that says what becomes of the stream.
func (r *recordingGuest) agreed(ok bool, err error) (bool, error) {
	if err == nil {
		r.rec.add(r.v.name, fmt.Sprint("  => ", ok))
	}
	return ok, r.ended(err)
}

func (r *recordingGuest) acted(a Action, err error) (Action, error) {
	if err == nil {
		r.rec.add(r.v.name, fmt.Sprint("  => ", a))
	}
	return a, r.ended(err)
}

func (r *recordingGuest) OnContextCreate(c, parent uint32) error {
	r.call("on_context_create", c, parent)
	return r.ended(r.g.OnContextCreate(c, parent))
}

func (r *recordingGuest) OnVMStart(c uint32, size int) (bool, error) {
	r.call("on_vm_start", c, size)
	return r.agreed(r.g.OnVMStart(c, size))
}

func (r *recordingGuest) OnConfigure(c uint32, size int) (bool, error) {
	r.call("on_configure", c, size)
	return r.agreed(r.g.OnConfigure(c, size))
}

func (r *recordingGuest) OnTick(c uint32) error {
	r.call("on_tick", c)
	return r.ended(r.g.OnTick(c))
}

func (r *recordingGuest) OnQueueReady(c, q uint32) error {
	r.call("on_queue_ready", c, q)
	return r.ended(r.g.OnQueueReady(c, q))
}

func (r *recordingGuest) OnHTTPCallResponse(c, token uint32, headers, size, trailers int) error {
	r.call("on_http_call_response", c, token, headers, size, trailers)
	return r.ended(r.g.OnHTTPCallResponse(c, token, headers, size, trailers))
}

func (r *recordingGuest) OnGRPCReceiveInitialMetadata(c, token uint32, headers int) error {
	r.call("on_grpc_receive_initial_metadata", c, token, headers)
	return r.ended(r.g.OnGRPCReceiveInitialMetadata(c, token, headers))
}

func (r *recordingGuest) OnGRPCReceive(c, token uint32, size int) error {
	r.call("on_grpc_receive", c, token, size)
	return r.ended(r.g.OnGRPCReceive(c, token, size))
}

func (r *recordingGuest) OnGRPCReceiveTrailingMetadata(c, token uint32, trailers int) error {
	r.call("on_grpc_receive_trailing_metadata", c, token, trailers)
	return r.ended(r.g.OnGRPCReceiveTrailingMetadata(c, token, trailers))
}

func (r *recordingGuest) OnGRPCClose(c, token, status uint32) error {
	r.call("on_grpc_close", c, token, status)
	return r.ended(r.g.OnGRPCClose(c, token, status))
}

func (r *recordingGuest) OnRequestHeaders(c uint32, n int, eos bool) (Action, error) {
	r.call("on_request_headers", c, n, eos)
	return r.acted(r.g.OnRequestHeaders(c, n, eos))
}

func (r *recordingGuest) OnRequestBody(c uint32, n int, eos bool) (Action, error) {
	r.call("on_request_body", c, n, eos)
	return r.acted(r.g.OnRequestBody(c, n, eos))
}

func (r *recordingGuest) OnRequestTrailers(c uint32, n int) (Action, error) {
	r.call("on_request_trailers", c, n)
	return r.acted(r.g.OnRequestTrailers(c, n))
}

func (r *recordingGuest) OnResponseHeaders(c uint32, n int, eos bool) (Action, error) {
	r.call("on_response_headers", c, n, eos)
	return r.acted(r.g.OnResponseHeaders(c, n, eos))
}

func (r *recordingGuest) OnResponseBody(c uint32, n int, eos bool) (Action, error) {
	r.call("on_response_body", c, n, eos)
	return r.acted(r.g.OnResponseBody(c, n, eos))
}

func (r *recordingGuest) OnResponseTrailers(c uint32, n int) (Action, error) {
	r.call("on_response_trailers", c, n)
	return r.acted(r.g.OnResponseTrailers(c, n))
}

func (r *recordingGuest) OnDone(c uint32) (bool, error) {
	r.call("on_done", c)
	return r.agreed(r.g.OnDone(c))
}

func (r *recordingGuest) OnLog(c uint32) error {
	r.call("on_log", c)
	return r.ended(r.g.OnLog(c))
}

func (r *recordingGuest) OnDelete(c uint32) error {
	r.call("on_delete", c)
	return r.ended(r.g.OnDelete(c))
}

func (r *recordingGuest) Close() { r.g.Close() }
