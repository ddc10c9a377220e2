package hostsim_test

import (
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// Names are lower case; a repeated header is read as its first value.
func TestHeaderNamesAndValues(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		s := hostsimtest.Open(r, r.h, 0)
		h := append(hostsimtest.Post("/x", "x-script", "rh=get:0:x-a,get:0:X-A,get:0:x-none,get:0:x-empty,pairs:0:names,get:8:x-a,pairs:8,size:8,setpairs:8:1"), hostsim.Header{"X-A", "1"}, hostsim.Header{"x-a", "2"}, hostsim.Header{"x-empty", ""})
		s.RequestHeaders(h, true)
		r.wantLog("worker-0", "rh 10 end", "rh: get:0:x-a = Ok 1", "rh: get:0:X-A = Ok 1", "rh: get:0:x-none = NotFound", "rh: get:0:x-empty = Ok ",
			"rh: pairs:0:names = Ok :method :path :authority x-script x-a x-a x-empty :scheme x-forwarded-proto x-request-id",
			"rh: get:8:x-a = BadArgument", "rh: pairs:8 = BadArgument", "rh: size:8 = BadArgument", "rh: setpairs:8:1 = BadArgument")
	})
}

// The edits: add appends (into one value where Envoy keeps a single slot), replace
// leaves one, remove takes all; new names are lower-cased.
func TestHeaderEditsFollowEnvoy(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		s, h := r.open("rh=add:0:X-New:1,add:0:x-a:3,get:0:x-a,replace:0:x-b:9,remove:0:x-c,remove:0:x-none,add:0:content-type:text/b,size:0", "x-a", "1", "x-b", "1", "x-b", "2", "x-c", "1", "content-type", "text/a")
		s.RequestHeaders(h, true)
		s.Settle()
		m := s.Up.Message().Headers
		got := []string{}
		for _, name := range []string{"x-new", "x-a", "x-b", "x-c", "content-type"} {
			got = append(got, name+"="+strings.Join(m.Values(name), "|"))
		}
		want(r, "headers", strings.Join(got, " "), "x-new=1 x-a=1|3 x-b=9 x-c= content-type=text/a,text/b")
	})
}

// Replacing the whole map.
func TestHeaderSetPairs(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		s := r.run("rh=setpairs:0:3,pairs:0:names,size:0,replacepath:/y")
		r.wantLog("worker-0", "rh 7 end", "rh: setpairs:0:3 = Ok", "rh: pairs:0:names = Ok x-many-0 x-many-1 x-many-2", "rh: size:0 = Ok 27", "rh: replacepath:/y = Ok")
		want(r, "upstream headers", len(s.Up.Message().Headers), 4)
	})
}

// A map of more than 1024 pairs becomes empty, silently.
func TestHeaderMapTooLarge(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		r.run("sh=setpairs:2:1024,pairs:2,setpairs:2:1025,pairs:2,get:2::status").Respond(200)
		r.wantLog("worker-0", "sh 1 end", "sh: setpairs:2:1024 = Ok", "sh: pairs:2 = Ok 1024", "sh: setpairs:2:1025 = Ok", "sh: pairs:2 = Ok 0", "sh: get:2::status = NotFound")
	})
}

// After Continue the request's headers are out of reach, until on_log; the whole map
// reads as empty, without an error.
func TestRequestHeadersAfterContinue(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		s := r.run("rh=get:0::path;rb=get:0::path,pairs:0,size:0,replace:0:a:b,prop:request.path,prop:request.id,prop:request.host;sh=get:0::path,prop:request.path;log=get:0::path,prop:request.path,pairs:0", "abc")
		s.Respond(200)
		r.wantLog("worker-0", "rh 7", "rh: get:0::path = Ok /x",
			"rb 3", "rb: get:0::path = BadArgument", "rb: pairs:0 = Ok 0", "rb: size:0 = BadArgument", "rb: replace:0:a:b = BadArgument", "rb: prop:request.path = NotFound", "rb: prop:request.id = NotFound", "rb: prop:request.host = NotFound",
			"rb 0 end", "rb: get:0::path = BadArgument", "rb: pairs:0 = Ok 0", "rb: size:0 = BadArgument", "rb: replace:0:a:b = BadArgument", "rb: prop:request.path = NotFound", "rb: prop:request.id = NotFound", "rb: prop:request.host = NotFound",
			"sh 1 end", "sh: get:0::path = BadArgument", "sh: prop:request.path = NotFound",
			"log 0", "log: get:0::path = Ok /x", "log: prop:request.path = Ok /x", "log: pairs:0 = Ok 7")
	})
}

// Response headers, likewise, after Continue in body callbacks.
func TestResponseHeadersAfterContinue(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		r.run("rh=get:2::status;sh=get:2::status;sb=get:2::status,add:2:a:b").Respond(200, "abc")
		r.wantLog("worker-0", "rh 7 end", "rh: get:2::status = BadArgument", "sh 1", "sh: get:2::status = Ok 200",
			"sb 3", "sb: get:2::status = BadArgument", "sb: add:2:a:b = BadArgument", "sb 0 end", "sb: get:2::status = BadArgument", "sb: add:2:a:b = BadArgument")
	})
}

// While everything is paused on headers they stay readable from elsewhere.
func TestHeadersWhilePaused(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		callRig(r, cluster, hostsim.Config{})
		s := r.run("rh=pause,call:c:0;cb=effective:self,get:0::path,add:0:x-late:1,resume:0")
		reply(r, cluster)
		want(r, "header added while paused", s.Up.Message().Headers.Get("x-late"), "1")
	})
}

// Changing request headers clears the cached route; changing response headers does not.
func TestHeaderChangeClearsRoute(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		var asked []string
		s := hostsimtest.OpenWith(r, r.h, hostsim.StreamOptions{Route: func(h hostsim.Headers) hostsim.Route {
			asked = append(asked, h.Get(":path"))
			return hostsim.Route{Name: "route" + strings.ReplaceAll(h.Get(":path"), "/", "-"), Cluster: "c" + h.Get(":path")}
		}})
		s.RequestHeaders(hostsimtest.Post("/x", "x-script", "rh=prop:xds.route_name,prop:route_name,replacepath:/y,prop:xds.route_name,prop:cluster_name,foreign:clear_route_cache;sh=add:2:a:b,prop:xds.route_name,prop:xds.cluster_name"), true)
		s.Respond(200)
		r.wantLog("worker-0", "rh 7 end", "rh: prop:xds.route_name = Ok route-x", "rh: prop:route_name = Ok route-x", "rh: replacepath:/y = Ok", "rh: prop:xds.route_name = Ok route-y",
			"rh: prop:cluster_name = Ok c/y", "rh: foreign:clear_route_cache = Ok", "sh 1 end", "sh: add:2:a:b = Ok", "sh: prop:xds.route_name = Ok route-y", "sh: prop:xds.cluster_name = Ok c/y")
		want(r, "resolutions", strings.Join(asked, " "), "/x /y /y")
	})
}

// A response with trailers: the end comes with them, not with the body.
func TestTrailersEndTheResponse(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		s := r.run("sh=;sb=get:3:grpc-status;st=get:3:grpc-status,add:3:x-t:1;log=get:3:grpc-status")
		s.ResponseHeaders(hostsim.H(":status", "200"), false)
		s.ResponseData([]byte("abc"), false)
		s.ResponseTrailers(hostsim.H("grpc-status", "0"))
		s.Settle()
		want(r, "downstream", s.Down.Log(), `headers 200 | data "abc" | trailers 2 end`)
		r.wantLog("worker-0", "sh 1", "sb 3", "sb: get:3:grpc-status = BadArgument", "st 1 end", "st: get:3:grpc-status = Ok 0", "st: add:3:x-t:1 = Ok", "log 0", "log: get:3:grpc-status = Ok 0")
	})
}

// Trailers can be added in the last body callback, and only there.
func TestTrailersAreAddedInTheLastBodyCallbackOnly(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		s := r.run("rb1=add:1:t:1;rb2=add:1:t:2,get:1:t;rt=", "abc")
		want(r, "upstream", s.Up.Log(), `headers POST /x | data "abc" | trailers 1 end`)
		s.ResponseHeaders(hostsim.H(":status", "200"), false)
		s.ResponseData([]byte("abc"), true)
		s.Settle()
		r.wantLog("worker-0", "rb 3", "rb: add:1:t:1 = BadArgument", "rb 0 end", "rb: add:1:t:2 = Ok", "rb: get:1:t = Ok 2")
		s = r.run("sb=add:3:t:1")
		s.ResponseHeaders(hostsim.H(":status", "200"), false)
		s.ResponseData([]byte("abc"), true)
		s.Settle()
		want(r, "downstream", s.Down.Log(), `headers 200 | data "abc" | trailers 1 end`)
	})
}

// The ranges of buffer edits and reads.
func TestBufferRangesFollowEnvoy(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		s := r.run("rb1=buffer:0:0:3,buffer:0:1:1,buffer:0:2:0xffffffff,buffer:0:3:1,buffer:0:9:1,buffer:0:0:0,buffersize:0,"+
			"setbuffer:0:0:0:12,setbuffer:0:1:1:x,setbuffer:0:0:2:x,setbuffer:0:5:0:67,setbuffer:0:99:99:8,buffer:0:0:99,buffersize:0;"+
			"rb2=setbuffer:0:0:99:end", "345")
		want(r, "upstream", s.Up.Log(), `headers POST /x | data "12345678" | data "end" end`)
		r.wantLog("worker-0", "rb 3", "rb: buffer:0:0:3 = Ok 345", "rb: buffer:0:1:1 = Ok 4", "rb: buffer:0:2:0xffffffff = Ok 5", "rb: buffer:0:3:1 = Ok ", "rb: buffer:0:9:1 = Ok ", "rb: buffer:0:0:0 = Ok ", "rb: buffersize:0 = Ok 3",
			"rb: setbuffer:0:0:0:12 = Ok", "rb: setbuffer:0:1:1:x = BadArgument", "rb: setbuffer:0:0:2:x = BadArgument", "rb: setbuffer:0:5:0:67 = Ok", "rb: setbuffer:0:99:99:8 = Ok",
			"rb: buffer:0:0:99 = Ok 12345678", "rb: buffersize:0 = Ok 8", "rb 0 end", "rb: setbuffer:0:0:99:end = Ok")
	})
}

// Which buffers there are when: absent is NotFound, not here is empty, beyond the list
// is BadArgument.
func TestBuffersExistInTheirCallbacksOnly(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{VMConfig: []byte("vm=1"), PluginConfig: []byte("configure=buffer:6:0:9,buffer:7:0:4;tick=buffer:6:0:9,buffer:7:0:9,buffer:0:0:9;x=1")})
		r.run("rh=buffer:0:0:9,buffersize:0,setbuffer:0:0:0:x,buffer:2:0:9,buffer:4:0:9,buffer:5:0:9,buffersize:7,buffer:9:0:9,buffersize:9,setbuffer:9:0:0:x,setbuffer:6:0:0:x,setbuffer:7:0:0:x,reply:200")
		r.wantLog("worker-0", "configure: buffer:6:0:9 = Ok vm=1", "configure: buffer:7:0:4 = Ok conf", "rh 7 end",
			"rh: buffer:0:0:9 = Ok ", "rh: buffersize:0 = Ok 0", "rh: setbuffer:0:0:0:x = BadArgument", "rh: buffer:2:0:9 = Ok ", "rh: buffer:4:0:9 = NotFound", "rh: buffer:5:0:9 = Ok ", "rh: buffersize:7 = NotFound",
			"rh: buffer:9:0:9 = BadArgument", "rh: buffersize:9 = BadArgument", "rh: setbuffer:9:0:0:x = BadArgument", "rh: setbuffer:6:0:0:x = BadArgument", "rh: setbuffer:7:0:0:x = NotFound", "rh: reply:200 = Ok")
	})
}

// A request without the headers that Envoy requires is refused before the filter.
func TestMissingPseudoHeaders(t *testing.T) {
	r := newRig(t, nativeScript())
	r.start(hostsim.Config{})
	for _, missing := range []string{":method", ":path", ":authority"} {
		s := hostsimtest.Open(t, r.h, 0)
		h := hostsimtest.Post("/x", "x-script", "rh=;sh=;log=")
		h.Del(missing)
		s.RequestHeaders(h, true)
		s.Settle()
		want(t, "without "+missing, s.Down.Log(), "headers 400 end")
	}
	r.wantLog("worker-0")
}
