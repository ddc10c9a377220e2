package hostsim

// This file calls the guest's stream callbacks and interprets their answers like Envoy's Wasm filter.

type headersStatus uint8

const (
	headersContinue headersStatus = iota
	headersStopSingle
	headersStopAllBuffer
	headersStopAllWatermark
)

type dataStatus uint8

const (
	dataContinue dataStatus = iota
	dataStopBuffer
	dataStopWatermark
	dataStopNoBuffer
)

type trailersStatus uint8

const (
	trailersContinue trailersStatus = iota
	trailersStop
)

// checkFailed reports whether the stream's VM is dead. Then the stream gets its 503, even if new streams pass without
// the filter.
func (s *Stream) checkFailed() bool {
	if s.vm == nil || !s.vm.failed {
		return false
	}
	if !s.failSent {
		s.failSent = true
		s.sendLocalReply(&localReply{code: 503, details: "wasm_fail_stream", grpcStatus: grpcCodeUnavailable, failed: true}, ResetLocalReply)
	}
	return true
}

// skipped reports whether the filter does not see this half: the stream has no filter, or the half is the host's answer
// for a dead VM.
func (h *half) skipped() bool {
	s := h.s
	return s.vm == nil || h.response && s.bypassResponse
}

func (h *half) callHeaders(endStream bool) headersStatus {
	s := h.s
	if h.skipped() {
		return headersContinue
	}
	if s.checkFailed() {
		return headersStopAllWatermark
	}
	h.seeHeaders, s.endFlag = true, endStream
	v := s.vm
	a, _ := v.callback(s.ctx, pick(h.response, onResponseHeaders, onRequestHeaders), uint32(len(h.headers)), b2u(endStream))
	var st headersStatus
	if s.checkFailed() {
		st = headersStopAllWatermark
	} else {
		st = s.headersStatus(Action(a))
	}
	v.finish()
	if st == headersContinue {
		h.seeHeaders = false
	}
	return st
}

func (s *Stream) headersStatus(a Action) headersStatus {
	switch {
	case s.vm.stopIteration:
		return headersStopAllWatermark
	case a == 0 || a == 2:
		return headersContinue
	case a == 1 && s.host.cfg.AllowOnHeadersStopIteration:
		return headersStopSingle
	case a == 3:
		return headersStopAllBuffer
	}
	return headersStopAllWatermark
}

// callBody passes the piece at *b to the filter, which may change it. While the filter collects the body, it gets the
// whole buffer instead.
func (h *half) callBody(b *[]byte, endStream bool) dataStatus {
	s := h.s
	if h.skipped() {
		return dataContinue
	}
	if s.checkFailed() {
		return dataStopNoBuffer
	}
	h.body, h.stale, s.endFlag = b, false, endStream
	size := len(*b)
	if h.buffering {
		size = len(h.buffer)
	}
	v := s.vm
	a, _ := v.callback(s.ctx, pick(h.response, onResponseBody, onRequestBody), uint32(size), b2u(endStream))
	var st dataStatus
	if s.checkFailed() {
		st = dataStopNoBuffer
	} else if v.stopIteration || a > 3 {
		st = dataStopNoBuffer
	} else {
		st = dataStatus(a)
	}
	v.finish()
	h.buffering = st == dataStopBuffer
	h.body = nil
	if st != dataContinue {
		h.stale = st != dataStopBuffer
		// Trailers can still be added while the last piece is paused.
		h.body = new([]byte)
	}
	return st
}

func (h *half) callTrailers() trailersStatus {
	s := h.s
	if h.skipped() {
		return trailersContinue
	}
	if s.checkFailed() {
		return trailersStop
	}
	h.seeTrailers = true
	v := s.vm
	a, _ := v.callback(s.ctx, pick(h.response, onResponseTrailers, onRequestTrailers), uint32(len(h.trailers)))
	st := trailersContinue
	if s.checkFailed() {
		st = trailersStop
	} else if v.stopIteration || Action(a) != ActionContinue {
		st = trailersStop
	}
	v.finish()
	if st == trailersContinue {
		h.seeTrailers = false
	}
	return st
}

func pick[T any](cond bool, yes, no T) T {
	if cond {
		return yes
	}
	return no
}

// enterDecoding marks that a request callback is running. A local reply made meanwhile waits until the filter manager
// is in control again.
func (s *Stream) enterDecoding(h *half) (was bool) {
	was = s.inDecoding
	s.inDecoding = was || !h.response
	return was
}

// leaveDecoding sends the local reply that waited, if any. It returns true when the half must stop.
func (s *Stream) leaveDecoding(h *half, was bool) bool {
	s.inDecoding = was
	if s.prepared != nil && !was {
		r := s.prepared
		s.prepared = nil
		s.playReply(r)
	}
	return s.over || h.aborted || s.prepared != nil
}
