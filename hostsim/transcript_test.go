package hostsim_test

import (
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// The recorder writes down what host and guest say to each other, the same for a
// native and for a wasm guest.
func TestTranscriptIsTheSameForNativeAndWasm(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{Clock: r.clock, Handler: func(hostsim.CallRequest) hostsim.CallResponse { return hostsimtest.Answer("200", "pong") },
			StreamHandler: func(s *hostsimtest.ServerStream) {
				s.OnMessage = func(b []byte, end bool) {
					if !end {
						s.Accept("x-a", "1")
						s.Send(b)
						s.Finish(5, "no")
					}
				}
			}}
		var rec hostsim.Recorder
		r.start(hostsim.Config{
			Recorder: &rec, Clusters: map[string]hostsim.Cluster{"c": cluster}, VMID: "vm",
			PluginConfig: []byte("configure=define:0:n,qreg:q,tick:1000;queue=deq:q;tick=time;done=done"),
		})
		s, h := r.open("rh=pause,get:0::path,pairs:0:names,size:0,add:0:a:1,replace:0:a:2,remove:0:a,call:c:100::ping," +
			"gopen:g:c:k:v,gsend:g:hi,gclose:g,gopen:h:c,gcancel:h;gm=get:4:x-a;gt=get:5:grpc-status;gc=gclose:g;" +
			"cb=get:6::status,buffer:4:0:9,status,effective:self,resume:0;" +
			"rb=buffer:0:0:99,buffersize:0,setbuffer:0:0:99:new;" +
			"sh=prop:response.code_details,setprop:mine:1,sdget:k,sdset:k:v:0,qres:vm:q,enq:q:item,inc:n:1,record:n:2,metric:n,foreign:nothing;" +
			"sb=setpairs:2:1,reply:200:x:why:3:a:b,resume:1,close:1;log=log:9:x")
		// Piece by piece: the answer of the callout, and the queue, come as soon as
		// the headers have been handled.
		s.RequestHeaders(h, false)
		s.Settle()
		s.RequestData([]byte("abc"), true)
		s.Settle()
		s.ResponseHeaders(hostsim.H(":status", "200"), false)
		s.Settle()
		s.ResponseData([]byte("hello"), false)
		s.Settle()
		r.clock.Advance(1e9)
		r.run("rh=trap")
		if err := r.h.Close(within(r)); err != nil {
			r.Fatal(err)
		}
		text := rec.Text("worker-0")
		if r.wasm {
			text = withoutWasmTraces(text)
		} else {
			text = withoutPanic(text)
		}
		hostsimtest.Golden(r, "transcript", text)
		rec.Reset()
		want(r, "after a reset", rec.Text(), "")
	})
}

// The two kinds of guest die with different words.
func withoutWasmTraces(s string) string {
	s = strings.ReplaceAll(s, "worker-0   log(2, \"panic: as the script says\") = Ok\n", "")
	return strings.ReplaceAll(s, "trap: wasm error: unreachable", "trap: a panic")
}

func withoutPanic(s string) string {
	return strings.ReplaceAll(s, "trap: panic: as the script says", "trap: a panic")
}
