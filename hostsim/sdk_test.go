package hostsim_test

import (
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

func sdkRig(t *testing.T, guest string, cluster *hostsimtest.Cluster) *rig {
	r := newRig(t, guestSource(t, guest))
	callRig(r, cluster, hostsim.Config{})
	return r
}

func (r *rig) do(what string, nameValues ...string) *hostsimtest.Stream {
	r.Helper()
	s := hostsimtest.Open(r, r.h, 0)
	s.Request(hostsimtest.Get("/", append([]string{"x-do", what}, nameValues...)...))
	s.Settle()
	return s
}

// The SDK drops the answer to a call whose stream has gone; one that was made in the
// plugin's context is delivered.
func TestSDKDropsAnswersOfDeletedStreams(t *testing.T) {
	cluster := &hostsimtest.Cluster{}
	r := sdkRig(t, "sdk", cluster)
	for _, c := range []struct{ do, path, got string }{
		{"call", "/stream", ""},
		{"enqueue", "/plugin", "plugin got an answer of 1 headers"},
	} {
		s := r.do(c.do)
		s.ClientReset()
		s.Settle()
		r.logs.take("worker-0")
		call, err := cluster.Next(within(t))
		if err != nil {
			t.Fatal(err)
		}
		want(t, "caller", call.Headers.Get(":path"), c.path)
		call.Reply(hostsimtest.Answer("200", ""))
		r.settle()
		want(t, "delivered", strings.Join(r.logs.take("worker-0"), " "), c.got)
	}
	// A stream that still lives gets its answer.
	r.do("call")
	reply(r, cluster)
	r.wantLog("worker-0", "stream got an answer of 1 headers")
	hostsimtest.Healthy(t, r.h)
}

// The SDK turns the BadArgument for an increment by 0 into a panic: the VM dies.
func TestSDKIncrementByZeroKills(t *testing.T) {
	r := sdkRig(t, "sdk", &hostsimtest.Cluster{})
	want(t, "increment by 1", r.do("increment").Up.Log(), "headers GET / end")
	want(t, "increment by 0", r.do("increment-zero").Down.Log(), "headers 503 end")
	want(t, "afterwards", r.do("increment").Down.Log(), "headers 503 end")
	want(t, "traps", len(r.h.Traps()), 1)
}

// The SDK's local replies carry no details.
func TestSDKLocalReplyHasNoDetails(t *testing.T) {
	r := sdkRig(t, "sdk", &hostsimtest.Cluster{})
	want(t, "downstream", r.do("reply").Down.Log(), `headers 202 | data "ok" end`)
	r.do("").Respond(200)
	r.wantLog("worker-0", `details ""`, `details "via_upstream"`)
}

// An unknown effective context is an error in the SDK, too.
func TestSDKUnknownEffectiveContext(t *testing.T) {
	r := sdkRig(t, "sdk", &hostsimtest.Cluster{})
	r.do("effective")
	r.wantLog("worker-0", "effective: error status returned by host: bad argument")
}

// A panic traps the VM; recover does not help on wasm.
func TestSDKPanicTraps(t *testing.T) {
	r := sdkRig(t, "sdk", &hostsimtest.Cluster{})
	s := r.do("recover")
	want(t, "downstream", s.Down.Log(), "headers 503 end")
	want(t, "traps", len(r.h.Traps()), 1)
}

// A module that exports malloc keeps every value that was handed to it; one that
// leaves it to proxy_on_memory_allocate does not.
func TestExportedMallocLeaks(t *testing.T) {
	memory := map[string]uint64{}
	value := strings.Repeat("x", 32<<10)
	for _, guest := range []string{"malloc", "sdk"} {
		r := sdkRig(t, guest, &hostsimtest.Cluster{})
		for range 500 {
			s := hostsimtest.Open(t, r.h, 0)
			s.RequestHeaders(hostsimtest.Get("/", "x-do", "read", "x-data", value), true)
			s.ResponseHeaders(hostsim.H(":status", "200"), true)
			await(t, s.Done(), "the stream's end")
		}
		memory[guest] = r.h.GuestMemory(0)
		hostsimtest.Healthy(t, r.h)
	}
	t.Logf("memory after 500 values of 32 KiB: %v", memory)
	if memory["malloc"] < 500*32<<10 {
		t.Errorf("exported malloc: %d bytes, less than was handed over", memory["malloc"])
	}
	if memory["sdk"] > 2<<20 {
		t.Errorf("without malloc: %d bytes", memory["sdk"])
	}
}
