package hostsim

import (
	"context"
	"strconv"
	"time"
)

// callout is an HTTP call in progress. It belongs to the plugin's root context and outlives the stream that started it.
type callout struct {
	bytes  int
	cancel context.CancelFunc
	stop   func() bool // the timeout's timer
}

// httpCall starts a call. The guest's headers, body and trailers are copies already.
func (v *vm) httpCall(name string, h Headers, body []byte, trailers Headers, timeoutMS uint32) (uint32, Status) {
	if int32(timeoutMS) < 0 {
		return 0, StatusBadArgument
	}
	cluster := v.host.cfg.Clusters[name]
	if cluster == nil || !h.Has(":method") || !h.Has(":path") || !h.Has(":authority") {
		return 0, StatusBadArgument
	}
	if len(body) > 0 {
		h.Set("content-length", strconv.Itoa(len(body)))
	}
	v.lastCall += 4 // the low two bits are the kind of call: 0 is HTTP
	token := v.lastCall
	if v.canary {
		// The canary ends before its thread handles network events again: the call is accepted, but never sent or
		// answered.
		return token, StatusOK
	}
	size := len(body) + h.Bytes() + trailers.Bytes()
	if len(v.calls) >= maxCallsPerVM || v.callBytes+size > callBytesLimit {
		return 0, StatusInternalFailure
	}
	v.callBytes += size
	ctx, cancel := context.WithCancel(v.host.ctx)
	c := &callout{bytes: size, cancel: cancel}
	v.calls[token] = c
	timeout := time.Duration(timeoutMS) * time.Millisecond
	err := cluster.Call(ctx, CallRequest{Cluster: name, Thread: v.name, Headers: h, Body: body, Trailers: trailers, Timeout: timeout},
		func(r CallResponse) {
			v.thread.loop.post(event{kind: evFunc, f: func() { v.onCallResponse(token, r) }})
		})
	if err != nil {
		v.forgetCall(token)
		return 0, StatusInternalFailure
	}
	if timeout > 0 {
		c.stop = v.host.cfg.Clock.AfterFunc(timeout, func() {
			v.thread.loop.post(event{kind: evFunc, f: func() { v.onCallResponse(token, CallResponse{Failure: CallTimedOut}) }})
		})
	}
	return token, StatusOK
}

func (v *vm) forgetCall(token uint32) {
	if c := v.calls[token]; c != nil {
		delete(v.calls, token)
		v.callBytes -= c.bytes
		c.cancel()
		if c.stop != nil {
			c.stop()
		}
	}
}

// onCallResponse passes the answer to the guest. A second answer, or one after the timeout, finds no call and is
// dropped.
func (v *vm) onCallResponse(token uint32, r CallResponse) {
	if v.calls[token] == nil {
		return
	}
	v.forgetCall(token)
	seen := r.asSeen()
	if r.Failure == CallResetMidAnswer {
		v.callCode, v.callStatus = uint32(StatusBrokenConnection), "reset"
	} else {
		v.callResponse = seen
	}
	_, called := v.callback(v.root, onHTTPCallResponse, token, uint32(len(seen.Headers)), uint32(len(seen.Body)), uint32(len(seen.Trailers)))
	v.callResponse, v.callStatus = CallResponse{}, ""
	if called {
		v.finish()
	}
}

// asSeen returns the answer as the guest gets it: a failure before response headers becomes the reply that Envoy's
// router would make, and one after them has nothing.
func (r CallResponse) asSeen() CallResponse {
	var f UpstreamFailure
	switch r.Failure {
	case CallOK:
		if r.Headers == nil {
			r.Headers = Headers{}
		}
		return r
	case CallResetMidAnswer:
		return CallResponse{}
	case CallTimedOut:
		f = UpstreamTimedOut
	case CallConnectFailed:
		f = UpstreamConnectFailed
	default:
		f = UpstreamDisconnected
	}
	reply := f.reply(r.Detail, false)
	h := Headers{{":status", strconv.Itoa(reply.code)}}
	if len(reply.body) > 0 {
		h.Add("content-length", strconv.Itoa(len(reply.body)))
		h.Add("content-type", "text/plain")
	}
	return CallResponse{Headers: h, Body: reply.body}
}
