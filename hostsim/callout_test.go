package hostsim_test

import (
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// callRig starts a host with one scripted cluster, "c".
func callRig(r *rig, c *hostsimtest.Cluster, cfg hostsim.Config) *hostsim.Host {
	c.Clock = r.clock
	cfg.Clusters = map[string]hostsim.Cluster{"c": c}
	return r.start(cfg)
}

// An unknown cluster, a missing pseudo header or a negative timeout is BadArgument, no
// healthy host or a full circuit breaker is InternalFailure, at once and without a
// callback.
func TestBadCallIsRefused(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{
			Handler: func(hostsim.CallRequest) hostsim.CallResponse { return hostsimtest.Answer("200", "") },
			Fault: func(n int, _ hostsim.CallRequest) hostsimtest.Fault {
				return hostsimtest.Fault{Refuse: []error{hostsim.ErrNoHealthyHost, hostsim.ErrCircuitBreaker, nil}[n-1]}
			},
		}
		callRig(r, cluster, hostsim.Config{})
		r.run("rh=pause,call:nowhere:100,call:c:100:method,call:c:100:path,call:c:100:authority,call:c:0xffffffff,call:c:100:many,call:c:100,call:c:100,call:c:100;cb=get:6::status")
		r.wantLog("worker-0", "rh 7 end",
			"rh: call:nowhere:100 = BadArgument",
			"rh: call:c:100:method = BadArgument",
			"rh: call:c:100:path = BadArgument",
			"rh: call:c:100:authority = BadArgument",
			"rh: call:c:0xffffffff = BadArgument",
			"rh: call:c:100:many = BadArgument", // 1025 pairs are read as none
			"rh: call:c:100 = InternalFailure",
			"rh: call:c:100 = InternalFailure",
			"rh: call:c:100 = Ok 12",
			"answer 1 headers, 0 bytes, 0 trailers", "cb: get:6::status = Ok 200")
		want(r, "calls that arrived", len(cluster.Calls()), 1)
	})
}

// The request arrives as it was made; the answer's map and body can be read in the
// callback, and only there.
func TestAnswerIsReadableInItsCallbackOnly(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{Handler: func(hostsim.CallRequest) hostsim.CallResponse {
			a := hostsimtest.Answer("201", "hello", "x-a", "1")
			a.Trailers = hostsim.H("t", "2")
			return a
		}}
		callRig(r, cluster, hostsim.Config{})
		r.run("rh=pause,call:c:100::ping,get:6::status,buffer:4:0:9;cb=pairs:6,get:6:x-a,get:7:t,buffer:4:1:3,setbuffer:4:0:0:x,add:6:a:b,size:6,status,effective:self,resume:0;log=get:6::status")
		r.wantLog("worker-0", "rh 7 end", "rh: call:c:100::ping = Ok 4", "rh: get:6::status = BadArgument", "rh: buffer:4:0:9 = NotFound",
			"answer 2 headers, 5 bytes, 1 trailers",
			"cb: pairs:6 = Ok 2", "cb: get:6:x-a = Ok 1", "cb: get:7:t = Ok 2", "cb: buffer:4:1:3 = Ok ell",
			"cb: setbuffer:4:0:0:x = BadArgument", "cb: add:6:a:b = BadArgument", "cb: size:6 = BadArgument", "cb: status = 0 ",
			"cb: effective:self = Ok", "cb: resume:0 = Ok")
		c := cluster.Calls()[0]
		want(r, "body", string(c.Body), "ping")
		want(r, "content-length", c.Headers.Get("content-length"), "4")
		want(r, "method", c.Headers.Get(":method"), "POST")
		want(r, "timeout", c.Timeout, 100*time.Millisecond)
		hostsimtest.Healthy(r, r.h)
	})
}

// Failures: a timeout is a 504, a failure before response headers a 503, both made up
// by the host with a text; a reset after response headers is zero headers.
func TestHostMakesUpAnswersForFailedCalls(t *testing.T) {
	for _, c := range []struct {
		failure hostsim.CallFailure
		want    []string
	}{
		{hostsim.CallTimedOut, []string{"answer 3 headers, 24 bytes, 0 trailers", "cb: get:6::status = Ok 504", "cb: get:6:content-type = Ok text/plain", "cb: buffer:4:0:99 = Ok upstream request timeout", "cb: status = 0 "}},
		{hostsim.CallConnectFailed, []string{"answer 3 headers, 98 bytes, 0 trailers", "cb: get:6::status = Ok 503", "cb: get:6:content-type = Ok text/plain", "cb: buffer:4:0:99 = Ok upstream connect error or disconnect/reset before headers. reset reason: remote connection failure", "cb: status = 0 "}},
		{hostsim.CallReset, []string{"answer 3 headers, 95 bytes, 0 trailers", "cb: get:6::status = Ok 503", "cb: get:6:content-type = Ok text/plain", "cb: buffer:4:0:99 = Ok upstream connect error or disconnect/reset before headers. reset reason: connection termination", "cb: status = 0 "}},
		{hostsim.CallResetMidAnswer, []string{"answer 0 headers, 0 bytes, 0 trailers", "cb: get:6::status = BadArgument", "cb: get:6:content-type = BadArgument", "cb: buffer:4:0:99 = NotFound", "cb: status = 11 reset"}},
	} {
		eachGuest(t, func(r *rig) {
			cluster := &hostsimtest.Cluster{Fault: func(int, hostsim.CallRequest) hostsimtest.Fault { return hostsimtest.Fault{Failure: c.failure} }}
			callRig(r, cluster, hostsim.Config{})
			r.run("rh=pause,call:c:100;cb=get:6::status,get:6:content-type,buffer:4:0:99,status")
			r.wantLog("worker-0", append([]string{"rh 7 end", "rh: call:c:100 = Ok 4"}, c.want...)...)
		})
	}
}

// A lost answer ends with the timeout; what comes later, or twice, is dropped. The
// caller's context is cancelled.
func TestTimeoutEndsALostCall(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		callRig(r, cluster, hostsim.Config{})
		r.run("rh=pause,call:c:100;cb=get:6::status")
		call, err := cluster.Next(within(r))
		if err != nil {
			r.Fatal(err)
		}
		r.clock.Advance(99 * time.Millisecond)
		want(r, "cancelled before the timeout", call.Cancelled(), false)
		r.clock.Advance(time.Millisecond)
		want(r, "cancelled at the timeout", call.Cancelled(), true)
		call.Reply(hostsimtest.Answer("200", "late"))
		call.Reply(hostsimtest.Answer("200", "later"))
		r.wantLog("worker-0", "rh 7 end", "rh: call:c:100 = Ok 4", "answer 3 headers, 24 bytes, 0 trailers", "cb: get:6::status = Ok 504")
	})
}

// Without a timeout a call waits forever.
func TestCallWithoutTimeout(t *testing.T) {
	r := newRig(t, nativeScript())
	cluster := &hostsimtest.Cluster{}
	callRig(r, cluster, hostsim.Config{StreamIdleTimeout: 1000 * time.Hour})
	r.run("rh=pause,call:c:0;cb=get:6::status,effective:self,reply:200")
	r.clock.Advance(100 * time.Hour)
	call, err := cluster.Next(within(t))
	if err != nil {
		t.Fatal(err)
	}
	call.Reply(hostsimtest.Answer("200", ""))
	r.wantLog("worker-0", "rh 7 end", "rh: call:c:0 = Ok 4", "answer 1 headers, 0 bytes, 0 trailers", "cb: get:6::status = Ok 200", "cb: effective:self = Ok", "cb: reply:200 = Ok")
}

// The cluster's scripted faults: delayed, executed with the answer lost, executed
// twice. Nothing is retried by the host.
func TestScriptedFaultsOfAClusterHappen(t *testing.T) {
	r := newRig(t, nativeScript())
	executed := 0
	faults := []hostsimtest.Fault{
		{Delay: 50 * time.Millisecond},
		{Lost: true},
		{Lost: true, Executed: true},
		{Failure: hostsim.CallReset, Executed: true},
		{Twice: true},
	}
	cluster := &hostsimtest.Cluster{
		Handler: func(hostsim.CallRequest) hostsim.CallResponse {
			executed++
			return hostsimtest.Answer("20"+string(rune('0'+executed)), "")
		},
		Fault: func(n int, _ hostsim.CallRequest) hostsimtest.Fault { return faults[n-1] },
	}
	callRig(r, cluster, hostsim.Config{})
	for _, c := range []struct {
		executed int
		status   string
	}{{1, "201"}, {1, "504"}, {2, "504"}, {3, "503"}, {5, "205"}} {
		s := r.run("rh=pause,call:c:100;cb=get:6::status")
		r.clock.Advance(100 * time.Millisecond)
		s.ClientReset()
		r.settle()
		lines := r.logs.take("worker-0")
		want(t, "status", lines[len(lines)-1], "cb: get:6::status = Ok "+c.status)
		want(t, "executed", executed, c.executed)
	}
}

// A call belongs to the plugin: it survives its stream, whose context is then gone.
func TestCallOutlivesStream(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		callRig(r, cluster, hostsim.Config{PluginConfig: []byte("cb=get:6::status,effective:2,get:0::path,resume:0")})
		s := r.run("rh=pause,call:c:1000;delete=")
		s.ClientReset()
		want(r, "over", s.Over(), true)
		call, err := cluster.Next(within(r))
		if err != nil {
			r.Fatal(err)
		}
		want(r, "cancelled", call.Cancelled(), false)
		call.Reply(hostsimtest.Answer("200", ""))
		// The deleted stream cannot be made effective; what follows acts on the plugin.
		r.wantLog("worker-0", "rh 7 end", "rh: call:c:1000 = Ok 4", "delete 0", "answer 1 headers, 0 bytes, 0 trailers",
			"cb: get:6::status = Ok 200", "cb: effective:2 = BadArgument", "cb: get:0::path = BadArgument", "cb: resume:0 = Ok")
		hostsimtest.Healthy(r, r.h)
	})
}

// Answers never re-enter a VM, even when the cluster answers within the call.
func TestCallAnswerIsDeferred(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{Handler: func(hostsim.CallRequest) hostsim.CallResponse { return hostsimtest.Answer("200", "") }}
		callRig(r, cluster, hostsim.Config{})
		r.run("rh=pause,call:c:100,sdset:k:v:0;cb=sdget:k")
		r.wantLog("worker-0", "rh 7 end", "rh: call:c:100 = Ok 4", "rh: sdset:k:v:0 = Ok", "answer 1 headers, 0 bytes, 0 trailers", "cb: sdget:k = Ok v")
	})
}

// Calls of a VM that died meanwhile are answered to nobody.
func TestCallOfDeadVM(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		callRig(r, cluster, hostsim.Config{FailurePolicy: hostsim.FailReload})
		r.run("rh=pause,call:c:0;cb=get:6::status")
		r.run("rh=trap")
		r.run("rh=reply:200") // a new VM
		call, err := cluster.Next(within(r))
		if err != nil {
			r.Fatal(err)
		}
		call.Reply(hostsimtest.Answer("200", ""))
		r.settle()
		if log := strings.Join(r.logs.take("worker-0"), "\n"); strings.Contains(log, "answer") {
			r.Errorf("the new VM got its predecessor's answer:\n%s", log)
		}
		want(r, "traps", len(r.h.Traps()), 1)
	})
}

// There are no gRPC services; tokens are told apart by kind.
func TestUnknownForeignFunctionIsNotFound(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		r.run("rh=foreign:clear_route_cache,foreign:nothing,reply:200")
		r.wantLog("worker-0", "rh 7 end", "rh: foreign:clear_route_cache = Ok", "rh: foreign:nothing = NotFound", "rh: reply:200 = Ok")
	})
}
