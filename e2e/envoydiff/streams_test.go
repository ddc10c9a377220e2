package envoydiff

// grpcShow is what most cases show of a stream. The filter forgets the stream when it has ended, as every filter must.
const grpcShow = ";gm=pairs:4:names,get:4::status;gr=;gt=pairs:5:names,get:5:grpc-status;gc=status,gclose:a"

// streams are gRPC streams of a filter.
var streams = &site{name: "streams", rpc: true, plugin: "gm=;gr=;gt=;gc=", cases: []diffCase{
	{fact: "40", name: "exchange", show: ":authority x-a te content-type", steps: []string{
		"get rh=pause,gopen:a:streams_g:x-a:1,gsend:a:hello;gm=pairs:4:names,size:4,replace:4:a:b;gr=buffer:5:0:9,get:4::status,setbuffer:5:0:0:x,buffersize:5,effective:self,gsend:a:again;gt=pairs:5:names,get:5:grpc-status,get:4::status;gc=status,gclose:a,gclose:a,status",
		"rpc 1 accept", "rpc 1 send one", "rpc 1 send two", "rpc 1 half abc", "rpc 1 finish 5 no such thing", "b get rh=status,buffersize:5,pairs:4,reply:200:x",
	}},
	{fact: "40", name: "resumed", steps: []string{
		"get rh=pause,gopen:a:streams_g;gr1=effective:self,resume:0;gc=gclose:a", "rpc 1 accept", "rpc 1 send one two", "status 200 end", "rpc 1 finish 0"}},
	{fact: "40", name: "client leaves", steps: []string{
		"get rh=pause,gopen:a:streams_g" + grpcShow, "leave", "rpc 1 accept", "rpc 1 send one", "rpc 1 finish 0"}},
	{fact: "40", name: "metadata", show: ":authority :method :scheme x-a x-b te content-type user-agent grpc-timeout", steps: []string{
		"get rh=gopen:a:streams_g:X-A:1:x-b:2:x-b:3,reply:200:x" + grpcShow, "rpc 1 accept", "rpc 1 finish 0"}},
	{fact: "41", name: "unknown cluster", steps: []string{"get rh=gopen:a:nowhere,reply:200:x" + grpcShow}},
	{fact: "41", name: "no host", steps: []string{"get rh=gopen:a:streams_empty,reply:200:x" + grpcShow}},
	{fact: "41", name: "circuit breaker", steps: []string{"get rh=gopen:a:streams_full,reply:200:x" + grpcShow, "rpc 1 accept", "b get rh=gopen:b:streams_full,gsend:b:x,reply:200:x", "rpc 1 finish 0"}},
	{fact: "41", name: "no service", steps: []string{"get rh=graw:a:x,reply:200:x" + grpcShow}},
	{fact: "41", name: "refused connection", steps: []string{"get rh=gopen:a:streams_gone,gsend:a:x,reply:200:x;gm=;gt=pairs:5:names;gc=gclose:a"}},
	{fact: "42", name: "ends with 0", steps: []string{"get rh=gopen:a:streams_g,reply:200:x" + grpcShow, "rpc 1 accept", "rpc 1 finish 0"}},
	{fact: "42", name: "trailers without a status", steps: []string{"get rh=gopen:a:streams_g,reply:200:x" + grpcShow, "rpc 1 accept", "rpc 1 nostatus"}},
	{fact: "42", name: "ends without trailers", steps: []string{"get rh=gopen:a:streams_g,reply:200:x" + grpcShow, "rpc 1 accept", "rpc 1 end"}},
	{fact: "42", name: "refused with 16", steps: []string{"get rh=gopen:a:streams_g,reply:200:x" + grpcShow, "rpc 1 refuse 200 16"}},
	{fact: "42", name: "refused with 401 and 16", steps: []string{"get rh=gopen:a:streams_g,reply:200:x" + grpcShow, "rpc 1 refuse 401 16"}},
	{fact: "42", name: "bare 401", steps: []string{"get rh=gopen:a:streams_g,reply:200:x" + grpcShow, "rpc 1 bare 401"}},
	{fact: "42", name: "bare 503", steps: []string{"get rh=gopen:a:streams_g,reply:200:x" + grpcShow, "rpc 1 bare 503"}},
	{fact: "42", name: "bare 200", steps: []string{"get rh=gopen:a:streams_g,reply:200:x" + grpcShow, "rpc 1 bare 200"}},
	{fact: "42", name: "page with 503", steps: []string{"get rh=gopen:a:streams_g,reply:200:x" + grpcShow, "rpc 1 html 503"}},
	{fact: "42", name: "page with 200", steps: []string{"get rh=gopen:a:streams_g,reply:200:x" + grpcShow, "rpc 1 html 200"}},
	{fact: "42", name: "compressed", steps: []string{"get rh=gopen:a:streams_g,reply:200:x" + grpcShow, "rpc 1 accept", "rpc 1 compressed abc"}},
	{fact: "42", name: "reset 8", steps: []string{"get rh=gopen:a:streams_g,reply:200:x" + grpcShow, "rpc 1 accept", "rpc 1 reset 8"}},
	{fact: "42", name: "reset 0", steps: []string{"get rh=gopen:a:streams_g,reply:200:x" + grpcShow, "rpc 1 accept", "rpc 1 reset 0"}},
	{fact: "42", name: "reset 7 before headers", steps: []string{"get rh=gopen:a:streams_g,reply:200:x" + grpcShow, "rpc 1 reset 7"}},
	{fact: "42", name: "server killed", steps: []string{"get rh=gopen:a:streams_g,reply:200:x" + grpcShow, "rpc 1 accept", "rpc 1 hangup"}},
	{fact: "42", name: "server killed before headers", steps: []string{"get rh=gopen:a:streams_g,reply:200:x" + grpcShow, "rpc 1 hangup"}},
	{fact: "43", name: "half closed", steps: []string{
		"get rh=gopen:a:streams_g,gclose:a,gsend:a:late,gclose:a,reply:200:x;gm=;gr=gsend:a:later;gt=;gc=gclose:a", "rpc 1 accept", "rpc 1 send one", "rpc 1 finish 0", "b get rh=gsend:a:x,gcancel:a,reply:200:x"}},
	{fact: "43", name: "last message", steps: []string{
		"get rh=gopen:a:streams_g,gend:a:last,gsend:a:late,gclose:a,reply:200:x;gm=;gr=;gt=;gc=gclose:a", "rpc 1 accept", "rpc 1 send one", "rpc 1 finish 0"}},
	{fact: "43", name: "cancelled", blind: true, steps: []string{
		"get rh=gopen:a:streams_g,gcancel:a,gsend:a:late,gclose:a,gcancel:a,reply:200:x" + grpcShow}},
	{fact: "43", name: "cancelled later", steps: []string{
		"get rh=pause,gopen:a:streams_g" + grpcShow, "rpc 1 accept", "b get rh=gcancel:a,gsend:a:x,reply:200:x", "rpc 1 send x"}},
	{fact: "43", name: "used in the close callback", steps: []string{
		"get rh=gopen:a:streams_g,reply:200:x;gt=;gc=gsend:a:x,gclose:a,gcancel:a", "rpc 1 accept", "rpc 1 finish 0"}},
	{fact: "43", name: "cancelled in the close callback", steps: []string{
		"get rh=gopen:a:streams_g,reply:200:x;gt=;gc=gcancel:a,gsend:a:x", "rpc 1 accept", "rpc 1 hangup"}},
	{fact: "43", name: "ended server side first", steps: []string{
		"get rh=gopen:a:streams_g,gend:a:x,reply:200:x;gc=gclose:a", "rpc 1 accept", "rpc 1 finish 0", "b get rh=gsend:a:x,gclose:a,reply:200:x"}},
	{fact: "43", name: "bad tokens", steps: []string{"get rh=gsend:0:x,gclose:0,gcancel:0,gsend:1:x,gclose:1,gcancel:1,gsend:994:x,gclose:994,gcancel:994,gsend:3:x,gclose:3,gcancel:3,reply:200:x"}},
	{fact: "44", name: "goaway", steps: []string{
		"get rh=gopen:a:streams_g,reply:200:x" + grpcShow, "rpc 1 accept", "rpc 1 goaway", "rpc 1 send one", "b get rh=gopen:b:streams_g,gsend:a:x,gsend:b:x,reply:200:x;gc=gclose:b", "rpc 2 accept", "rpc 1 finish 0", "rpc 2 finish 0"}},
	{fact: "44", name: "server that does not read", blind: true, steps: []string{
		"get rh=gopen:a:streams_g,reply:200:x;gc=gclose:a", "rpc 1 accept", "rpc 1 stall", "b get rh=gfill:a:10000000,gfill:a:10000000,gsend:a:x,gcancel:a,reply:200:x"}},
	{fact: "44", name: "large messages", steps: []string{
		"get rh=gopen:a:streams_g,gfill:a:5000000,gsend:a:x,reply:200:x" + grpcShow, "rpc 1 accept", "rpc 1 fill 3000000", "rpc 1 finish 0"}},
	{fact: "44", name: "filter traps", steps: []string{"get rh=gopen:a:streams_g,reply:200:x;gr=trap", "rpc 1 accept", "rpc 1 send x", "rpc 1 send y", "b get rh=gopen:b:streams_g"}},
}}
