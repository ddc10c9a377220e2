package hostsim_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// One VM per worker and one on the main thread; that one is configured and ticks, and
// never gets a stream. VMs share nothing but shared data, queues and metrics.
func TestMainThreadHasAVMWithoutStreams(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{Workers: 3, PluginConfig: []byte("configure=sdcount:vms,tick:1000;tick=sdcount:ticks")})
		value := func(key string) string {
			v, _, _ := r.h.Process().GetSharedData("", key)
			return string(v)
		}
		want(r, "VMs (canary, main, 3 workers)", value("vms"), "5")
		for range 9 {
			s := hostsimtest.Open(r, r.h, hostsim.AnyWorker)
			s.Request(hostsimtest.Get("/", "x-script", "rh=sdcount:streams"))
			s.Settle()
			s.ClientReset()
		}
		r.settle()
		want(r, "streams", value("streams"), "9")
		for i := range 3 {
			seen := strings.Count(strings.Join(r.logs.take(fmt.Sprintf("worker-%d", i)), "\n"), "sdcount:streams")
			want(r, fmt.Sprintf("streams on worker %d", i), seen, 3)
		}
		r.clock.Advance(time.Second)
		want(r, "ticks (main, 3 workers; not the canary)", value("ticks"), "4")
		mainLog := strings.Join(r.logs.take("main"), "\n")
		if strings.Contains(mainLog, "rh:") || !strings.Contains(mainLog, "sdcount:ticks") {
			r.Errorf("main thread logged %s", mainLog)
		}
	})
}

// overlapGuest notes when two callbacks of one VM run at the same time. Its counter is
// plain memory, so that the race detector watches, too.
type overlapGuest struct {
	hostsim.DefaultGuest
	running  atomic.Int32
	overlaps *atomic.Int32
	calls    int
}

func (g *overlapGuest) OnRequestHeaders(uint32, int, bool) (hostsim.Action, error) {
	if g.running.Add(1) != 1 {
		g.overlaps.Add(1)
	}
	g.calls++
	g.running.Add(-1)
	return hostsim.ActionContinue, nil
}

func TestCallbacksOfOneVMNeverOverlap(t *testing.T) {
	var overlaps atomic.Int32
	src := hostsim.Native(func(hostsim.HostCalls) hostsim.Guest { return &overlapGuest{overlaps: &overlaps} })
	h := hostsimtest.Start(t, hostsim.Config{Guest: src, Workers: 2})
	const feeders, each = 8, 200
	errs := make(chan error, feeders)
	for range feeders {
		go func() {
			for range each {
				_, err := hostsimtest.Do(context.Background(), h, hostsimtest.Request{Headers: hostsimtest.Get("/"), Worker: hostsim.AnyWorker},
					func(hostsimtest.Message) hostsimtest.Response { return hostsimtest.Response{Status: 200} })
				if err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range feeders {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	want(t, "overlapping callbacks", overlaps.Load(), 0)
}

// The canary is tried first, on the main thread, and thrown away without on_done;
// what it wrote stays.
func TestCanaryIsTriedFirst(t *testing.T) {
	eachGuest(t, func(r *rig) {
		var rec hostsim.Recorder
		r.start(hostsim.Config{Recorder: &rec, VMConfig: []byte("start=sdset:from:start"), PluginConfig: []byte("configure=sdcount:n,define:0:c,inc:c:1;done=sdcount:done")})
		canary := rec.Text("canary")
		for _, callback := range []string{"on_context_create", "on_vm_start", "on_configure"} {
			if !strings.Contains(canary, callback) {
				r.Errorf("no %s on the canary:\n%s", callback, canary)
			}
		}
		all := rec.Text()
		if first := strings.Index(all, "main #1"); strings.LastIndex(all, "canary ") > first {
			r.Errorf("the canary was still running when main started:\n%s", all)
		}
		want(r, "configured VMs", string(r.h.SharedData()[1].Value), "3")
		want(r, "metric", r.h.Process().Metrics()[0].Value, 3)
		if err := r.h.Close(within(r)); err != nil {
			r.Fatal(err)
		}
		canary = rec.Text("canary")
		if strings.Contains(canary, "on_done") || strings.Contains(canary, "on_delete") {
			r.Errorf("the canary was told of its end:\n%s", canary)
		}
		if !strings.Contains(rec.Text("main"), "on_done") || !strings.Contains(rec.Text("worker-0"), "on_delete") {
			r.Errorf("main and worker were not told of their end:\n%s", rec.Text())
		}
	})
}

// A configuration that the canary refuses, or traps on, starts nothing.
func TestCanaryRefuses(t *testing.T) {
	eachGuest(t, func(r *rig) {
		for _, c := range []struct{ vm, plugin, want string }{
			{plugin: "configure=sdcount:n,log:4:mode is bad,false", want: "canary: proxy_on_configure refused the configuration: mode is bad"},
			{vm: "start=sdcount:n,false", want: "canary: proxy_on_vm_start refused"},
			{plugin: "configure=sdcount:n,trap", want: "canary: proxy_on_configure"},
		} {
			process := hostsim.NewProcess()
			msg := r.startError(hostsim.Config{Process: process, VMConfig: []byte(c.vm), PluginConfig: []byte(c.plugin)})
			if !strings.Contains(msg, c.want) {
				r.Errorf("error is %q, want %q in it", msg, c.want)
			}
			keys, _ := process.SharedDataSize("")
			want(r, "keys left when the last VM is gone", keys, 0)
		}
	})
}

// Callouts of a canary are accepted, never sent and never answered.
func TestCanaryCalloutsAreNeverSent(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		r.start(hostsim.Config{Clusters: map[string]hostsim.Cluster{"c": cluster}, PluginConfig: []byte("configure=call:c:1000,call:nowhere:1000")})
		r.wantLog("canary", "configure: call:c:1000 = Ok 4", "configure: call:nowhere:1000 = BadArgument")
		var threads []string
		for _, c := range cluster.Calls() {
			threads = append(threads, c.Thread)
		}
		want(r, "callers", strings.Join(threads, " "), "main worker-0")
	})
}

// Items sent to a queue that the canary registered go to the main thread's VM.
func TestCanaryQueueGoesToTheMainThread(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{PluginConfig: []byte("configure=qres::q,qreg:q,enq:q:from canary;queue=deq:q")})
		// Three VMs registered and enqueued: canary, main, worker. The worker owns it now;
		// of the items sent before, each one's callback went where the owner was then.
		r.settle()
		want(r, "canary's first look", r.logs.take("canary")[0], "configure: qres::q = NotFound")
		mainLog := strings.Join(r.logs.take("main"), "\n")
		if !strings.Contains(mainLog, "queue: deq:q = Ok from canary") {
			r.Errorf("main got no item: %s", mainLog)
		}
	})
}

// A trap makes new streams fail with 503, without any callback, and shared data
// outlives the VM.
func TestTrapFailsClosed(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		s := r.run("rh=sdset:k:v,trap")
		want(r, "the stream that trapped", s.Down.Log(), "headers 503 end")
		want(r, "upstream", s.Up.Log(), "")
		want(r, "over", s.Over(), true)
		s = r.run("rh=;sh=;log=")
		want(r, "the next stream", s.Down.Log(), "headers 503 end")
		want(r, "over", s.Over(), true)
		r.wantLog("worker-0", "rh 7 end", "rh: sdset:k:v = Ok")
		want(r, "shared data", string(r.h.SharedData()[0].Value), "v")
		traps := r.h.Traps()
		if len(traps) != 1 || traps[0].Thread != "worker-0" || traps[0].Callback != "proxy_on_request_headers" || traps[0].Err == nil {
			r.Errorf("traps are %v", traps)
		}
	})
}

func TestTrapFailOpen(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{FailurePolicy: hostsim.FailOpen})
		known := r.run("sh=")
		s := r.run("rh=trap")
		want(r, "the stream that trapped", s.Down.Log(), "headers 503 end")
		known.Respond(200)
		known.Settle()
		want(r, "one that the VM knew", known.Down.Log(), "headers 503 end")
		s = r.run("rh=pause")
		want(r, "upstream of the next stream", s.Up.Log(), "headers POST /x end")
		s.Respond(200)
		s.Settle()
		want(r, "its answer", s.Down.Log(), "headers 200 end")
	})
}

// FailReload makes a new VM for the next stream, with fresh memory, but not more
// often than the back-off allows, which begins with the first load.
func TestTrapFailReload(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{FailurePolicy: hostsim.FailReload, ReloadBackoff: time.Minute, PluginConfig: []byte("configure=sdcount:vms")})
		want(r, "the stream that trapped", r.run("rh=trap").Down.Log(), "headers 503 end")
		want(r, "soon after the start", r.run("rh=reply:204").Down.Log(), "headers 503 end")
		r.clock.Advance(time.Minute)
		want(r, "the next one", r.run("rh=reply:204").Down.Log(), "headers 204 end")
		want(r, "VMs", string(r.h.SharedData()[0].Value), "4")
		want(r, "trapped again", r.run("rh=trap").Down.Log(), "headers 503 end")
		want(r, "within the back-off", r.run("rh=reply:204").Down.Log(), "headers 503 end")
		r.clock.Advance(time.Minute)
		want(r, "after the back-off", r.run("rh=reply:204").Down.Log(), "headers 204 end")
		want(r, "VMs", string(r.h.SharedData()[0].Value), "5")
	})
}

// Streams that are paused in a VM when it dies hang until their idle timeout.
func TestTrapLeavesPausedStreamsHanging(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{FailurePolicy: hostsim.FailReload})
		paused := r.run("rh=pause;sh=;log=")
		r.clock.Advance(2 * time.Second)
		r.run("rh=trap")
		r.run("rh=reply:204") // the worker has a new VM meanwhile
		r.clock.Advance(5*time.Minute - 3*time.Second)
		want(r, "before the timeout", paused.Down.Log(), "")
		r.clock.Advance(time.Second)
		want(r, "at the timeout", paused.Down.Log(), "headers 503 end")
		want(r, "over", paused.Over(), true)
	})
}

// A trap in a response callback: 503 while the headers are held, a reset after that.
func TestTrapOnResponse(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{FailurePolicy: hostsim.FailReload, ReloadBackoff: time.Millisecond})
		s := r.run("sh=trap")
		s.Respond(200, "abc")
		s.Settle()
		want(r, "trap on headers", s.Down.Log(), "headers 503 end")
		r.clock.Advance(time.Second)
		s = r.run("sb=trap")
		s.Respond(200, "abc")
		s.Settle()
		want(r, "trap on body", s.Down.Log(), "headers 200 | reset local_reply")
		// A stream whose request went through before the VM died:
		r.clock.Advance(time.Second)
		s = r.run("rh=")
		r.h.Trap(0, errors.New("for the test"))
		s.Respond(200)
		s.Settle()
		want(r, "answer for a dead VM", s.Down.Log(), "headers 503 end")
	})
}

// The plugin may ask for time after on_done.
func TestPluginMayAskForTimeAfterDone(t *testing.T) {
	eachGuest(t, func(r *rig) {
		var rec hostsim.Recorder
		r.start(hostsim.Config{Recorder: &rec, PluginConfig: []byte("configure=tick:1000,done;tick=done;done=false")})
		closed := make(chan error, 1)
		go func() { closed <- r.h.Close(within(r)) }()
		for done := false; !done; {
			r.clock.Advance(time.Second) // until the tick after on_done
			select {
			case err := <-closed:
				if err != nil {
					r.Fatal(err)
				}
				done = true
			default:
			}
		}
		for _, thread := range []string{"main", "worker-0"} {
			text := rec.Text(thread)
			if !strings.Contains(text, "done() = NotFound") {
				r.Errorf("done was accepted before on_done:\n%s", text)
			}
			if i := strings.Index(text, "done() = Ok"); i < 0 || !strings.Contains(text[i:], "on_delete") {
				r.Errorf("no delete after done:\n%s", text)
			}
		}
	})
}

func TestBadConfigIsRefused(t *testing.T) {
	good := nativeScript()
	for _, c := range []struct {
		cfg  hostsim.Config
		want string
	}{
		{hostsim.Config{}, "Config.Guest is required"},
		{hostsim.Config{Guest: good, Workers: 257}, "Config.Workers is 257, allowed are 1 to 256"},
		{hostsim.Config{Guest: good, Workers: -1}, "Config.Workers is -1"},
		{hostsim.Config{Guest: good, BufferLimit: 5}, "Config.BufferLimit is 5"},
		{hostsim.Config{Guest: good, MaxStreams: -2}, "Config.MaxStreams is -2"},
		{hostsim.Config{Guest: good, MemoryLimit: 1}, "Config.MemoryLimit is 1"},
		{hostsim.Config{Guest: good, StreamIdleTimeout: -1}, "Config.StreamIdleTimeout is -1ns"},
		{hostsim.Config{Guest: good, ReloadBackoff: -1}, "Config.ReloadBackoff is -1ns"},
		{hostsim.Config{Guest: good, FailurePolicy: 3}, "Config.FailurePolicy is 3"},
		{hostsim.Config{Guest: good, CallbackTimeout: -1}, "Config.CallbackTimeout is -1ns"},
		{hostsim.Config{Guest: hostsim.Native(nil)}, "factory is nil"},
		{hostsim.Config{Guest: hostsim.Native(func(hostsim.HostCalls) hostsim.Guest { return nil })}, "factory returned nil"},
		{hostsim.Config{Guest: hostsim.Native(func(c hostsim.HostCalls) hostsim.Guest { c.SetTickPeriod(1); return nil })}, "before the VM has started only logging is allowed"},
	} {
		if msg := newRig(t, good).startErrorOf(c.cfg); !strings.Contains(msg, c.want) {
			t.Errorf("error is %q, want %q in it", msg, c.want)
		}
	}
}

// startErrorOf starts a host with exactly this configuration.
func (r *rig) startErrorOf(cfg hostsim.Config) string {
	r.Helper()
	h, err := hostsim.Start(within(r), cfg)
	if err == nil {
		_ = h.Close(within(r))
		return "no error"
	}
	return err.Error()
}
