package jobs

import (
	"encoding/binary"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/codec"
)

// What a job keeps of its attempts that failed. Claims and heartbeats write it again, so it is small.
const (
	// MaxErrors bounds Job.Errors.
	MaxErrors = 5
	// MaxErrorText bounds each of their texts in bytes.
	MaxErrorText = 512
)

// attemptFailed notes how the current attempt ended. It must be called while the job has its lease. An empty text is
// not noted.
func (r *record) attemptFailed(text string, at time.Time) {
	if text == "" {
		return
	}
	if len(text) > MaxErrorText {
		text = strings.ToValidUTF8(text[:MaxErrorText], "") // without half a character
	}
	if len(r.Errors) == MaxErrors {
		copy(r.Errors, r.Errors[1:])
		r.Errors = r.Errors[:MaxErrors-1]
	}
	r.Errors = append(r.Errors, AttemptError{Attempt: r.Attempt, At: at, Worker: r.Lease.Worker, Text: text})
}

func errorsSize(all []AttemptError) int {
	size := 0
	for i := range all {
		size += 24 + len(all[i].Worker) + len(all[i].Text)
	}
	return size
}

func appendErrors(b []byte, all []AttemptError) []byte {
	b = binary.AppendUvarint(b, uint64(len(all)))
	for i := range all {
		b = binary.AppendUvarint(b, uint64(all[i].Attempt))
		b = appendStamp(b, all[i].At)
		b = codec.AppendString(b, all[i].Worker)
		b = codec.AppendString(b, all[i].Text)
	}
	return b
}

func (d *decoder) errors() []AttemptError {
	n := d.Count(MaxErrors)
	if n == 0 {
		return nil
	}
	all := make([]AttemptError, n)
	for i := range all {
		all[i] = AttemptError{Attempt: int(d.Uvarint()), At: d.stamp(), Worker: d.String(), Text: d.String()}
		if e := &all[i]; e.Attempt < 0 || e.Text == "" || len(e.Text) > MaxErrorText || len(e.Worker) > MaxNameBytes {
			d.fail()
		}
	}
	return all
}

// Traceparent returns a W3C trace context in the form of version 00, or "" if it is none. Flags other than
// sampled and random are cleared.
func Traceparent(header string) string {
	const form = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
	if len(header) < len(form) || len(header) > len(form) && (header[:2] == "00" || header[len(form)] != '-') || header[:2] == "ff" {
		return ""
	}
	for i := range len(form) {
		switch c := header[i]; {
		case (form[i] == '-') != (c == '-'):
			return ""
		case c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'f'):
			return ""
		}
	}
	if strings.Trim(header[3:35], "0") == "" || strings.Trim(header[36:52], "0") == "" {
		return ""
	}
	flags := [...]string{"00", "01", "02", "03"}[strings.IndexByte("0123456789abcdef", header[54])&3]
	if header[:2] == "00" && header[53:55] == flags {
		return header[:len(form)]
	}
	return "00" + header[2:53] + flags
}
