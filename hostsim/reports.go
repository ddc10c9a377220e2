package hostsim

import (
	"context"
	crand "crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Trap is one failed call into a guest.
type Trap struct {
	Time     time.Time
	Thread   string // "canary", "main" or "worker-N"
	Callback string // the callback's ABI name, "initialisation" or "injected"
	Err      error
}

// Violation is something that a filter, or a stream's owner, must not do: Envoy
// crashes, or is in undefined territory, where this host continues.
type Violation struct {
	Thread  string
	Context uint32 // the stream's context id, 0 when the filter does not know the stream
	What    string
}

// GuestLog is one line that a guest logged.
type GuestLog struct {
	Thread  string
	Level   LogLevel
	Message string
}

// reportLimit bounds what is remembered of each kind of report.
const reportLimit = 1000

// reports collects what tests and operators want to know afterwards.
type reports struct {
	mu         sync.Mutex
	traps      []Trap
	violations []Violation
	logs       []GuestLog // of all levels
	warnings   []GuestLog // warn and above, which no flood of lesser lines pushes out
}

func keepLast[T any](list []T, v T) []T {
	if len(list) >= reportLimit {
		list = slices.Delete(list, 0, 1)
	}
	return append(list, v)
}

func copyOf[T any](r *reports, list *[]T) []T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(*list)
}

func (h *Host) reportTrap(t Trap) {
	h.reports.mu.Lock()
	h.reports.traps = keepLast(h.reports.traps, t)
	h.reports.mu.Unlock()
	h.cfg.Logger.Error("the filter's VM trapped and serves no more streams", "thread", t.Thread, "callback", t.Callback, "error", t.Err)
}

func (h *Host) reportViolation(v Violation) {
	h.reports.mu.Lock()
	h.reports.violations = keepLast(h.reports.violations, v)
	h.reports.mu.Unlock()
	h.cfg.Logger.Error("undefined behaviour in Envoy", "thread", v.Thread, "context", v.Context, "what", v.What)
}

// Traps returns the traps so far, oldest first (at most the last 1000).
func (h *Host) Traps() []Trap { return copyOf(&h.reports, &h.reports.traps) }

// Violations returns the violations so far, oldest first (at most the last 1000).
func (h *Host) Violations() []Violation { return copyOf(&h.reports, &h.reports.violations) }

// Logs returns the guest's log lines of all levels and threads, oldest first (at most the last 1000). A line is cut after
// 4 KiB.
func (h *Host) Logs() []GuestLog { return copyOf(&h.reports, &h.reports.logs) }

// Warnings is Logs for the lines of level warn and above. It has the last 1000 of those, however many others followed.
func (h *Host) Warnings() []GuestLog { return copyOf(&h.reports, &h.reports.warnings) }

// lastTrap is the error of the latest trap on a thread.
func (h *Host) lastTrap(thread string) error {
	h.reports.mu.Lock()
	defer h.reports.mu.Unlock()
	for i := len(h.reports.traps) - 1; i >= 0; i-- {
		if h.reports.traps[i].Thread == thread {
			return h.reports.traps[i].Err
		}
	}
	return errors.New("the VM trapped")
}

// lastErrorLog is what the guest complained about last, as a suffix for an error.
func (h *Host) lastErrorLog() string {
	h.reports.mu.Lock()
	defer h.reports.mu.Unlock()
	for i := len(h.reports.warnings) - 1; i >= 0; i-- {
		if l := h.reports.warnings[i]; l.Level >= LogError {
			return ": " + l.Message
		}
	}
	return ""
}

var slogLevels = [...]slog.Level{slog.LevelDebug - 4, slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError, slog.LevelError + 4}

func (h *Host) guestLog(thread string, level LogLevel, message string) {
	line := GuestLog{Thread: thread, Level: level, Message: cut(message, logKeptLimit)}
	h.reports.mu.Lock()
	h.reports.logs = keepLast(h.reports.logs, line)
	if level >= LogWarn {
		h.reports.warnings = keepLast(h.reports.warnings, line)
	}
	h.reports.mu.Unlock()
	if l := slogLevels[level]; h.cfg.Logger.Enabled(context.Background(), l) {
		h.cfg.Logger.Log(context.Background(), l, "wasm log", "thread", thread, "plugin", h.cfg.PluginName, "message", cut(message, logLineLimit))
	}
}

// idSource makes request ids.
type idSource struct {
	mu  sync.Mutex
	rng *rand.ChaCha8
}

func (s *idSource) seed(seed uint64) { s.rng = newRand(seed, "request ids") }

func newRand(seed uint64, use string) *rand.ChaCha8 {
	var key [32]byte
	if seed == 0 {
		_, _ = crand.Read(key[:]) // never fails
	} else {
		copy(key[:], int64Bytes(seed))
		copy(key[8:], use)
	}
	return rand.NewChaCha8(key)
}

// newRequestID is a random UUID, as Envoy generates for x-request-id.
func (h *Host) newRequestID() string {
	var b [16]byte
	h.ids.mu.Lock()
	_, _ = h.ids.rng.Read(b[:])
	h.ids.mu.Unlock()
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	var out [36]byte
	hex.Encode(out[0:8], b[0:4])
	hex.Encode(out[9:13], b[4:6])
	hex.Encode(out[14:18], b[6:8])
	hex.Encode(out[19:23], b[8:10])
	hex.Encode(out[24:36], b[10:16])
	out[8], out[13], out[18], out[23] = '-', '-', '-', '-'
	return string(out[:])
}
