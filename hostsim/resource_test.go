package hostsim_test

import (
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// manyCalls is a filter that calls out as often as it may, and stores as much as it
// may.
type manyCalls struct {
	hostsim.DefaultGuest
	h       hostsim.HostCalls
	results map[hostsim.Status]int
}

func (g *manyCalls) OnRequestHeaders(uint32, int, bool) (hostsim.Action, error) {
	for range 1<<16 + 10 {
		_, st := g.h.HTTPCall("c", hostsim.H(":method", "GET", ":path", "/", ":authority", "a"), nil, nil, 0)
		g.results[st]++
	}
	big := make([]byte, 600<<10)
	for _, name := range []string{"a", "b", "a"} {
		if st := g.h.SetProperty(name, big); st != hostsim.StatusOK {
			g.results[1000+st]++
		}
	}
	const more = 2000
	for range 1<<12 + 5 {
		g.results[more+g.h.ContinueStream(hostsim.StreamTypeDownstream)]++ // asks for nothing
	}
	g.results[more+100+g.h.AddHeaderMapValue(hostsim.MapRequestHeaders, "x", string(make([]byte, 17<<20)))]++
	g.results[more+100+g.h.ReplaceHeaderMapValue(hostsim.MapRequestHeaders, "x", string(make([]byte, 17<<20)))]++
	g.h.Log(hostsim.LogError, string(make([]byte, 1<<20)))
	for range 1<<12 + 5 {
		g.results[more+200+g.h.CloseStream(hostsim.StreamTypeRequest)]++
	}
	return hostsim.ActionPause, nil
}

func (g *manyCalls) OnContextCreate(_, parent uint32) error {
	if parent == 0 { // the plugin's configuration can be read now, too
		config, st := g.h.GetBufferBytes(hostsim.BufferPluginConfig, 0, 9)
		g.results[4000+st] = len(config)
	}
	return nil
}

// Callouts under way and a stream's properties have limits; SharedLimits shows those of
// queues and metrics.
func TestCallsAndPropertiesAreBounded(t *testing.T) {
	results := map[hostsim.Status]int{}
	cluster := &hostsimtest.Cluster{}
	r := newRig(t, hostsim.Native(func(h hostsim.HostCalls) hostsim.Guest { return &manyCalls{h: h, results: results} }))
	callRig(r, cluster, hostsim.Config{PluginConfig: []byte("config")})
	r.run("")
	want(t, "configuration in on_context_create", results[4000], 6)
	want(t, "harmless resumes", results[2000], 1<<12+5)
	want(t, "headers refused", results[2100+hostsim.StatusInternalFailure], 2)
	want(t, "closes accepted", results[2200], 1<<12)
	want(t, "closes refused", results[2200+hostsim.StatusInternalFailure], 5)
	if n := len(r.h.Warnings()[0].Message); n > 5000 {
		t.Errorf("%d bytes of a log line were kept", n)
	}
	want(t, "calls accepted", results[hostsim.StatusOK], 1<<16)
	want(t, "calls refused", results[hostsim.StatusInternalFailure], 10)
	want(t, "properties refused", results[1000+hostsim.StatusInternalFailure], 1)
	reply(r, cluster)
	want(t, "calls under way", cluster.Pending(), 1<<16-1)
}

// Linear memory never shrinks.
func TestMemoryNeverShrinks(t *testing.T) {
	r := wasmRig(t)
	r.start(hostsim.Config{})
	before := r.h.GuestMemory(0)
	r.run("rh=hog:8,reply:200")
	grown := r.h.GuestMemory(0)
	for range 100 {
		r.run("rh=reply:200")
	}
	after := r.h.GuestMemory(0)
	if grown < before+8<<20 || after < grown {
		t.Errorf("memory is %d, then %d, then %d bytes", before, grown, after)
	}
	want(t, "memory of a native guest", newNativeHost(t).GuestMemory(0), 0)
}

func newNativeHost(t *testing.T) *hostsim.Host {
	r := newRig(t, nativeScript())
	return r.start(hostsim.Config{})
}

// A guest that eats its memory traps; the others live.
func TestGuestThatEatsItsMemoryTraps(t *testing.T) {
	r := wasmRig(t)
	r.start(hostsim.Config{Workers: 2, MemoryLimit: 8 << 20})
	want(t, "the hog", r.run("rh=hog:100").Down.Log(), "headers 503 end")
	s := hostsimtest.Open(t, r.h, 1)
	s.Request(hostsimtest.Get("/", "x-script", "rh=reply:200"))
	s.Settle()
	want(t, "the other worker", s.Down.Log(), "headers 200 end")
	if traps := r.h.Traps(); len(traps) != 1 || !strings.HasPrefix(traps[0].Thread, "worker-0") {
		t.Errorf("traps are %v", traps)
	}
}
