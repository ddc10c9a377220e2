package hostsim_test

import (
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// Shared data follows proxy-wasm-cpp-host to the letter: cas 0 overwrites, a wrong CAS
// on a present key mismatches, an absent key is created whatever the CAS.
func TestSharedDataCAS(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		r.run("rh=sdget:a,sdset:a:1:0,sdset:a:2:0,sdget:a:cas,sdset:a:3:77,sdset:a:4:2,sdget:a:cas,sdset:b:5:77,sdget:b:cas,sdset:e::0,sdget:e")
		r.wantLog("worker-0", "rh 7 end",
			"rh: sdget:a = NotFound",
			"rh: sdset:a:1:0 = Ok",
			"rh: sdset:a:2:0 = Ok", // cas 0 overwrites a present key
			"rh: sdget:a:cas = Ok 2 cas 2",
			"rh: sdset:a:3:77 = CasMismatch",
			"rh: sdset:a:4:2 = Ok",
			"rh: sdget:a:cas = Ok 4 cas 3", // a mismatch takes no number
			"rh: sdset:b:5:77 = Ok",        // absent: created, whatever the CAS
			"rh: sdget:b:cas = Ok 5 cas 4",
			"rh: sdset:e::0 = Ok",
			"rh: sdget:e = Ok ") // an empty value is there, and empty
	})
}

// Create-if-absent is a set with a CAS that cannot be current; with cas 0 two workers
// both win.
func TestSharedDataCreateIfAbsent(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{Workers: 2})
		try := func(op string) string {
			var results []string
			for w := range 2 {
				s := hostsimtest.Open(r, r.h, w)
				s.Request(hostsimtest.Get("/", "x-script", "rh=sdget:"+op[6:strings.IndexByte(op[6:], ':')+6]+","+op))
				s.Settle()
				lines := r.logs.take("worker-" + strconv.Itoa(w))
				results = append(results, lines[len(lines)-1][len("rh: "+op+" = "):])
			}
			return strings.Join(results, " ")
		}
		want(r, "set with cas 0", try("sdset:k0:v:0"), "Ok Ok")
		want(r, "set with an impossible CAS", try("sdset:k1:v:4294967295"), "Ok CasMismatch")
	})
}

// A hook makes a read-modify-write lose its race.
func TestSharedDataLostRace(t *testing.T) {
	eachGuest(t, func(r *rig) {
		process := hostsim.NewProcess()
		rivals := 2
		r.start(hostsim.Config{Process: process, VMID: "v", Hooks: hostsim.Hooks{
			BeforeSetSharedData: func(h hostsim.HookSharedData) {
				if h.Key == "n" && h.CAS != 0 && rivals > 0 {
					rivals--
					process.SetSharedData("v", "n", []byte("10"), 0)
				}
			},
		}})
		r.run("rh=sdset:n:5,sdcas:n:6,sdcas:n:7,sdcas:n:8")
		r.wantLog("worker-0", "rh 7 end", "rh: sdset:n:5 = Ok", "rh: sdcas:n:6 = CasMismatch", "rh: sdcas:n:7 = CasMismatch", "rh: sdcas:n:8 = Ok")
	})
}

// Reads can be raced as well.
func TestAfterGetSharedDataHook(t *testing.T) {
	process := hostsim.NewProcess()
	r := newRig(t, nativeScript())
	r.start(hostsim.Config{Process: process, Hooks: hostsim.Hooks{
		AfterGetSharedData: func(h hostsim.HookSharedData) {
			if h.Status == hostsim.StatusNotFound {
				process.SetSharedData("", h.Key, []byte("rival"), 0)
			}
		},
	}})
	r.run("rh=sdget:n,sdset:n:mine:4294967295")
	r.wantLog("worker-0", "rh 7 end", "rh: sdget:n = NotFound", "rh: sdset:n:mine:4294967295 = CasMismatch")
}

// Several workers count in one key: no update is lost.
func TestSharedDataHammer(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{Workers: 4})
		var wg sync.WaitGroup
		const streams = 100
		for w := range 4 {
			wg.Go(func() {
				for range streams {
					s := hostsimtest.Open(r, r.h, w)
					s.Request(hostsimtest.Get("/", "x-script", "rh=sdcount:n,reply:200"))
					await(r, s.Done(), "the stream's end")
				}
			})
		}
		wg.Wait()
		want(r, "counter", string(r.h.SharedData()[0].Value), strconv.Itoa(4*streams))
		hostsimtest.Healthy(r, r.h)
	})
}

// Shared data is per vm_id and lives as long as any VM of it: the next generation of
// a filter finds what its predecessor left.
func TestSharedDataGenerations(t *testing.T) {
	process := hostsim.NewProcess()
	gen := func(vmID, config string) (*rig, *hostsim.Host) {
		r := newRig(t, nativeScript())
		return r, r.start(hostsim.Config{Process: process, VMID: vmID, PluginConfig: []byte(config)})
	}
	_, first := gen("v", "configure=sdset:k:old")
	r2, second := gen("v", "configure=sdget:k")
	r3, _ := gen("other", "configure=sdget:k")
	r2.wantLog("worker-0", "configure: sdget:k = Ok old")
	r3.wantLog("worker-0", "configure: sdget:k = NotFound")
	if err := first.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	want(t, "entries while the second generation runs", len(process.SharedData("v")), 1)
	if err := second.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	want(t, "entries when the last VM is gone", len(process.SharedData("v")), 0)
	_, third := gen("v", "configure=sdget:k")
	keys, bytes := third.SharedDataSize()
	want(t, "keys", keys, 0)
	want(t, "bytes", bytes, 0)
}

// There is no delete, no listing and no expiry: a key stays, an empty value still
// takes its place.
func TestSharedDataKeysStay(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		for i := range 50 {
			r.run("rh=sdset:key-" + strconv.Itoa(i) + "::0,reply:200")
		}
		r.clock.Advance(1000 * 3600 * 1e9)
		keys, bytes := r.h.SharedDataSize()
		want(r, "keys", keys, 50)
		want(r, "bytes", bytes, 10*5+40*6)
	})
}

// The VM that registers a queue last is the only one that is called; others reach it
// by number.
func TestLastRegistrationOwnsTheQueue(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{Workers: 3, PluginConfig: []byte("queue=deq:q")})
		on := func(worker int, ops string) {
			s := hostsimtest.Open(r, r.h, worker)
			s.Request(hostsimtest.Get("/", "x-script", "rh="+ops+",reply:200"))
			s.Settle()
		}
		on(0, "qres::q,qreg:q")
		on(1, "enq:q:one")
		on(1, "qreg:q")
		on(0, "enq:q:two")
		on(2, "qres::q,enqid:99:x,deqid:99,deq:q")
		r.wantLog("worker-0", "rh 7 end", "rh: qres::q = NotFound", "rh: qreg:q = Ok 1", "rh: reply:200 = Ok", "queue: deq:q = Ok one",
			"rh 7 end", "rh: enq:q:two = Ok", "rh: reply:200 = Ok")
		r.wantLog("worker-1", "rh 7 end", "rh: enq:q:one = Ok", "rh: reply:200 = Ok",
			"rh 7 end", "rh: qreg:q = Ok 1", "rh: reply:200 = Ok", "queue: deq:q = Ok two")
		r.wantLog("worker-2", "rh 7 end", "rh: qres::q = Ok 1", "rh: enqid:99:x = NotFound", "rh: deqid:99 = NotFound", "rh: deq:q = Empty", "rh: reply:200 = Ok")
	})
}

// An item stays until it is dequeued; each enqueue raises one callback, which may find
// several items or none; what was queued before anybody registered raises none.
func TestQueueItemsAndCallbacks(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{PluginConfig: []byte("queue=deq:q,deq:q")})
		r.run("rh=qreg:q,enq:q:a,enq:q:b,enq:q:c,reply:200")
		r.wantLog("worker-0", "rh 7 end", "rh: qreg:q = Ok 1", "rh: enq:q:a = Ok", "rh: enq:q:b = Ok", "rh: enq:q:c = Ok", "rh: reply:200 = Ok",
			"queue: deq:q = Ok a", "queue: deq:q = Ok b", "queue: deq:q = Ok c", "queue: deq:q = Empty", "queue: deq:q = Empty", "queue: deq:q = Empty")
	})
}

// Items that wait when a new generation of the filter registers are there, but raise no
// callback until the next enqueue.
func TestQueueLeftOvers(t *testing.T) {
	process := hostsim.NewProcess()
	first := newRig(t, nativeScript())
	first.start(hostsim.Config{Process: process, PluginConfig: []byte("configure=qreg:q;queue=log:2:ready")})
	first.run("rh=enq:q:left,reply:200")
	second := newRig(t, nativeScript())
	second.start(hostsim.Config{Process: process, PluginConfig: []byte("configure=qreg:q;queue=deq:q,deq:q")})
	second.wantLog("worker-0", "configure: qreg:q = Ok 1")
	first.run("rh=enq:q:new,reply:200")
	second.wantLog("worker-0", "queue: deq:q = Ok left", "queue: deq:q = Ok new")
	first.logs.take("worker-0")
}

// Queue-ready and tick callbacks run in the plugin's context: there is no stream.
func TestQueueAndTickContext(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{PluginConfig: []byte("configure=qreg:q,tick:1000;tick=get:0::path,prop:request.path;queue=get:0::path,setprop:a:b")})
		r.run("rh=pause,enq:q:x")
		r.clock.Advance(1e9)
		r.wantLog("worker-0", "configure: qreg:q = Ok 1", "configure: tick:1000 = Ok", "rh 7 end", "rh: enq:q:x = Ok",
			"queue: get:0::path = BadArgument", "queue: setprop:a:b = NotFound",
			"tick: get:0::path = BadArgument", "tick: prop:request.path = NotFound")
	})
}

// Queues of another vm_id are reached by naming it.
func TestQueueOfAnotherVM(t *testing.T) {
	process := hostsim.NewProcess()
	other := newRig(t, nativeScript())
	other.start(hostsim.Config{Process: process, VMID: "other", PluginConfig: []byte("configure=qreg:q;queue=deq:q")})
	other.logs.take("worker-0")
	r := newRig(t, nativeScript())
	r.start(hostsim.Config{Process: process, VMID: "mine"})
	r.run("rh=qres::q,qres:other:q,enqid:1:hello,reply:200")
	r.wantLog("worker-0", "rh 7 end", "rh: qres::q = NotFound", "rh: qres:other:q = Ok 1", "rh: enqid:1:hello = Ok", "rh: reply:200 = Ok")
	other.wantLog("worker-0", "queue: deq:q = Ok hello")
}
