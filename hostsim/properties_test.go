package hostsim_test

import (
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// The properties that filters ask for, with Envoy's types.
func TestPropertiesHaveEnvoysTypes(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{PluginName: "gate", RootID: "root", VMID: "vm"})
		s := hostsimtest.OpenWith(r, r.h, hostsim.StreamOptions{
			Connection: hostsim.ConnectionInfo{ID: 258, SourceAddress: "10.0.0.1:1234", DestinationAddress: "10.0.0.2:80"},
			Properties: map[string][]byte{"node.id": []byte("n1")},
		})
		s.RequestHeaders(hostsimtest.Post("/p/q?a=b", "x-script", "rh=prop:plugin_name,prop:plugin_root_id,prop:plugin_vm_id,prop:connection.id,prop:connection_id,prop:connection.mtls,prop:source.address,prop:source.port,prop:destination.port,prop:node.id,"+
			"prop:request.path,prop:request.url_path,prop:request.query,prop:request.host,prop:request.method,prop:request.scheme,prop:request.protocol,prop:request.headers.x-a,prop:request.headers.none,prop:request.useragent,prop:request.nothing,prop:nothing,prop:request,"+
			"prop:response.flags,prop:response.code,prop:response.code_details,prop:upstream.address,prop:upstream.request_attempt_count,prop:request.duration;"+
			"sh=prop:upstream.address,prop:upstream.port,prop:upstream.request_attempt_count,prop:response.code,prop:response.code_details,prop:response.headers.x-r;log=prop:request.duration",
			"x-a", "1", "x-a", "2"), true)
		s.UpstreamSelected("10.0.0.2:8080")
		s.UpstreamSelected("10.0.0.3:8080") // tried again
		s.ResponseHeaders(hostsim.H(":status", "200", "x-r", "r"), true)
		r.wantLog("worker-0", "rh 9 end",
			"rh: prop:plugin_name = Ok gate", "rh: prop:plugin_root_id = Ok root", "rh: prop:plugin_vm_id = Ok vm",
			"rh: prop:connection.id = Ok 0x0201000000000000", "rh: prop:connection_id = Ok 0x0201000000000000", "rh: prop:connection.mtls = Ok 0x00",
			"rh: prop:source.address = Ok 10.0.0.1:1234", "rh: prop:source.port = Ok 0xd204000000000000", "rh: prop:destination.port = Ok 0x5000000000000000", "rh: prop:node.id = Ok n1",
			"rh: prop:request.path = Ok /p/q?a=b", "rh: prop:request.url_path = Ok /p/q", "rh: prop:request.query = Ok a=b", "rh: prop:request.host = Ok example.test", "rh: prop:request.method = Ok POST",
			"rh: prop:request.scheme = Ok http", "rh: prop:request.protocol = Ok HTTP/1.1", "rh: prop:request.headers.x-a = Ok 1,2", "rh: prop:request.headers.none = NotFound", "rh: prop:request.useragent = NotFound", "rh: prop:request.nothing = NotFound", "rh: prop:nothing = NotFound", "rh: prop:request = NotFound",
			"rh: prop:response.flags = Ok 0x0000000000000000", "rh: prop:response.code = NotFound", "rh: prop:response.code_details = NotFound", "rh: prop:upstream.address = NotFound", "rh: prop:upstream.request_attempt_count = Ok 0x0000000000000000", "rh: prop:request.duration = NotFound",
			"sh 2 end", "sh: prop:upstream.address = Ok 10.0.0.3:8080", "sh: prop:upstream.port = Ok 0x901f000000000000", "sh: prop:upstream.request_attempt_count = Ok 0x0200000000000000", "sh: prop:response.code = Ok 0xc800000000000000", "sh: prop:response.code_details = Ok via_upstream", "sh: prop:response.headers.x-r = Ok r",
			"log 0", "log: prop:request.duration = Ok 0x0000000000000000")
	})
}

// A request's bytes count when they arrive, also behind a pause that holds them back.
func TestRequestBytesCountOnArrival(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		callRig(r, cluster, hostsim.Config{})
		s, h := r.open("rh=prop:request.size,call:c:0,pause;cb=effective:self,prop:request.size,resume:0")
		s.Request(h, "abc", "de")
		s.Settle()
		reply(r, cluster)
		s.Settle()
		r.wantLog("worker-0", "rh 7", "rh: prop:request.size = Ok 0x0000000000000000", "rh: call:c:0 = Ok 4", "answer 1 headers, 0 bytes, 0 trailers",
			"cb: effective:self = Ok", "cb: prop:request.size = Ok 0x0500000000000000", "cb: resume:0 = Ok")
	})
}

// A filter's own properties live on the stream, under a single-segment name.
func TestFiltersPropertiesLiveOnTheStream(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{PluginConfig: []byte("configure=setprop:a:b,prop:a,prop:plugin_name")})
		r.run("rh=prop:mine,setprop:mine:1,prop:mine,setprop:mine:2,prop:mine,setprop:a.b:3,prop:a.b;log=prop:mine").Respond(200)
		r.run("rh=prop:mine,reply:200")
		r.wantLog("worker-0", "configure: setprop:a:b = NotFound", "configure: prop:a = NotFound", "configure: prop:plugin_name = Ok ",
			"rh 7 end", "rh: prop:mine = NotFound", "rh: setprop:mine:1 = Ok", "rh: prop:mine = Ok 1", "rh: setprop:mine:2 = Ok", "rh: prop:mine = Ok 2", "rh: setprop:a.b:3 = Ok", "rh: prop:a.b = NotFound",
			"log 0", "log: prop:mine = Ok 2", "rh 7 end", "rh: prop:mine = NotFound", "rh: reply:200 = Ok")
	})
}

// Metrics are shared by name over all VMs; ids are not. Incrementing a counter by 0 or
// less is BadArgument.
func TestMetricsAreSharedByName(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{Workers: 2, PluginConfig: []byte("configure=define:0:requests.total,define:1:in-flight,define:2:1st,define:2:wait_ms")})
		want(r, "ids", strings.Join(r.logs.take("worker-1"), "\n"), "configure: define:0:requests.total = Ok 4\nconfigure: define:1:in-flight = Ok 5\nconfigure: define:2:1st = Ok 6\nconfigure: define:2:wait_ms = Ok 10")
		r.logs.take("worker-0")
		r.run("rh=define:0:requests.total,inc:requests.total:2,inc:requests.total:0,inc:requests.total:-1,record:requests.total:3,metric:requests.total," +
			"inc:in-flight:5,inc:in-flight:-2,inc:in-flight:0,metric:in-flight,record:in-flight:9,metric:in-flight," +
			"record:wait_ms:7,inc:wait_ms:1,metric:wait_ms,inc:400:1,inc:401:1,inc:402:1,record:400:1,metric:400,metric:402,define:3:x,reply:200")
		r.wantLog("worker-0", "rh 7 end", "rh: define:0:requests.total = Ok 8", "rh: inc:requests.total:2 = Ok", "rh: inc:requests.total:0 = BadArgument", "rh: inc:requests.total:-1 = BadArgument",
			"rh: record:requests.total:3 = Ok", "rh: metric:requests.total = Ok 5",
			"rh: inc:in-flight:5 = Ok", "rh: inc:in-flight:-2 = Ok", "rh: inc:in-flight:0 = Ok", "rh: metric:in-flight = Ok 3", "rh: record:in-flight:9 = Ok", "rh: metric:in-flight = Ok 9",
			"rh: record:wait_ms:7 = Ok", "rh: inc:wait_ms:1 = BadArgument", "rh: metric:wait_ms = BadArgument", "rh: inc:400:1 = NotFound", "rh: inc:401:1 = NotFound", "rh: inc:402:1 = BadArgument", "rh: record:400:1 = NotFound", "rh: metric:400 = NotFound", "rh: metric:402 = BadArgument", "rh: define:3:x = BadArgument", "rh: reply:200 = Ok")
		s := hostsimtest.Open(r, r.h, 1)
		s.Request(hostsimtest.Get("/", "x-script", "rh=metric:requests.total,inc:requests.total:1,reply:200"))
		r.wantLog("worker-1", "rh 7 end", "rh: metric:requests.total = Ok 5", "rh: inc:requests.total:1 = Ok", "rh: reply:200 = Ok")
		var text strings.Builder
		if err := r.h.WritePrometheus(&text); err != nil {
			r.Fatal(err)
		}
		lines := strings.Split(text.String(), "\n")
		want(r, "exposition", strings.Join(append(lines[:8:8], lines[len(lines)-4:]...), "\n"), `# TYPE in_flight gauge
in_flight{} 9
# TYPE requests_total counter
requests_total{} 6
# TYPE wait_ms histogram
wait_ms_bucket{le="0.5"} 0
wait_ms_bucket{le="1"} 0
wait_ms_bucket{le="5"} 0
wait_ms_bucket{le="+Inf"} 1
wait_ms_sum{} 7
wait_ms_count{} 1
`)
	})
}

// Time is the wall clock; the tick period is per VM, a new one counts from when it is set,
// 0 stops it.
func TestTimeAndTicks(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{PluginConfig: []byte("configure=tick:1000;tick=time")})
		r.logs.take("worker-0")
		r.clock.Advance(2500 * time.Millisecond)
		r.wantLog("worker-0", "tick: time = 1767323046000000000", "tick: time = 1767323047000000000")
		r.run("rh=time,tick:5000,reply:200")
		r.clock.Advance(4999 * time.Millisecond)
		r.wantLog("worker-0", "rh 7 end", "rh: time = 1767323047500000000", "rh: tick:5000 = Ok", "rh: reply:200 = Ok")
		r.clock.Advance(time.Millisecond)
		r.wantLog("worker-0", "tick: time = 1767323052500000000")
		r.run("rh=tick:0,reply:200")
		r.clock.Advance(time.Hour)
		r.wantLog("worker-0", "rh 7 end", "rh: tick:0 = Ok", "rh: reply:200 = Ok")
	})
}

// Log levels beyond the list are refused.
func TestUnknownLogLevelsAreRefused(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		r.run("rh=log:5:critical thing,log:3:a warning,log:6:x,reply:200")
		r.wantLog("worker-0", "rh 7 end", "rh: log:5:critical thing = Ok", "rh: log:3:a warning = Ok", "rh: log:6:x = BadArgument", "rh: reply:200 = Ok")
		w := r.h.Warnings()
		if len(w) != 2 || w[0].Message != "critical thing" || w[0].Level != hostsim.LogCritical || w[1].Thread != "worker-0" {
			r.Errorf("warnings are %v", w)
		}
	})
}
