package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"
)

// outcome is how a handler ended, in the form of a report. Nothing in it is code of the handler any more.
type outcome struct {
	result json.RawMessage
	// failure is the handler's error; empty for a success.
	failure string
	// done says that the work is done, so it must not run again, although there is a failure.
	done bool
	// permanent says that another attempt would not help.
	permanent bool
	// after is when the next attempt begins; nil leaves that to the manager.
	after *time.Duration
}

// call runs the handler, and the code of its result and its error, in a goroutine of its own: whatever they do, panic or
// runtime.Goexit, is this job's failure.
func (w *Worker) call(ctx context.Context, j *Job) outcome {
	h := w.opts.Handlers[j.Function]
	if h == nil {
		return outcome{failure: fmt.Sprintf("worker %s has no handler for %s", w.opts.Name, j.Function)}
	}
	// stage says what is under way. An end of the goroutine in the middle of it is the outcome.
	stage, ended := "the handler", false
	var o outcome
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if ended {
				return
			}
			o.failure = stage + ": runtime.Goexit ended the goroutine"
			if p := recover(); p != nil {
				o.failure = cut(fmt.Sprintf("%s: panic: %v\n%s", stage, p, debug.Stack()))
			}
		}()
		result, err := h(ctx, j)
		if err != nil {
			stage = fmt.Sprintf("the handler returned an error of the type %T, whose text cannot be had", err)
			o.fail(err)
		} else if result != nil {
			stage, o.done = notReportable, true
			o.encode(result)
		}
		ended = true
	}()
	<-done
	if !ended {
		w.opts.Logger.Error("handler failed without returning", "job", j.ID, "function", j.Function, "failure", o.failure)
	}
	return o
}

// notReportable begins the text of a success that becomes a failure.
const notReportable = "the work is done, but its result cannot be reported"

// fail reads a handler's error.
func (o *outcome) fail(err error) {
	var permanent permanentError
	var again retryError
	o.permanent = errors.As(err, &permanent)
	if errors.As(err, &again) {
		after := max(again.after, 0)
		o.after = &after
	}
	o.failure = cut(err.Error())
}

// encode makes a result of what a handler returned, or a failure.
func (o *outcome) encode(result any) {
	b, err := json.Marshal(result)
	switch {
	case err == nil && len(b) <= maxResult:
		o.result = b
	case err == nil:
		o.failure = fmt.Sprintf("%s: %d bytes, at most %d are kept", notReportable, len(b), maxResult)
	default:
		o.failure = cut(notReportable + ": " + err.Error())
	}
}

// cut bounds a reported text and makes it valid. It is never empty: an empty one would be a success.
func cut(s string) string {
	if len(s) > maxErrorText {
		n := maxErrorText
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	if s == "" {
		return "an error without a text"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
