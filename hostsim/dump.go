package hostsim

import (
	"context"
	"fmt"
)

// DumpStreams describes every stream that is not over, one line each, to explain a failed test. It leaves out a loop
// that does not answer before ctx ends.
func (h *Host) DumpStreams(ctx context.Context) []string {
	var out []string
	for _, t := range h.workers {
		lines := make(chan []string, 1)
		t.loop.post(event{kind: evFunc, f: func() {
			var l []string
			for s := t.oldest; s != nil; s = s.next {
				l = append(l, s.describe())
			}
			lines <- l
		}})
		select {
		case l := <-lines:
			out = append(out, l...)
		case <-t.loop.done:
		case <-ctx.Done():
		}
	}
	return out
}

func (s *Stream) describe() string {
	id := "no context"
	if s.ctx != nil {
		id = fmt.Sprintf("#%d", s.ctx.id)
	}
	return fmt.Sprintf("%s %s %s %s: request %s, response %s", s.t.name, id, s.req.headers.Get(":method"), s.req.headers.Get(":path"), s.req.describe(), s.resp.describe())
}

func (h *half) describe() string {
	state := [...]string{"iterating", "paused", "all paused"}[h.state]
	switch {
	case !h.started:
		return "not begun"
	case h.outEnded:
		return "sent on"
	}
	return fmt.Sprintf("%s (headers sent on: %t, end seen: %t, %d bytes held)", state, h.headersContinued, h.ended, len(h.buffer))
}
