package envoydiff

// last is what a filter sees of a stream that has ended.
const last = ";log=get:0::path,get:2::status,get:1:t,get:3:t,prop:response.flags,prop:response.code_details,prop:response.code,prop:request.path,replace:0:a:b;sdone=get:0::path;delete="

// facts shows host functions whose results do not depend on how a stream is paused.
var facts = &site{name: "facts", plugin: "configure=qreg:q;queue=deq:q,deq:q", cases: []diffCase{
	{fact: "7", name: "shared data", steps: []string{
		"get rh=sdget:k,sdset:k:v:0,sdget:k,sdset:k:w:0,sdget:k,sdset:k:x:0xffffffff,sdget:k,sdcas:k:y,sdget:k,sdset:new:v:0xffffffff,sdset:new:w:0xffffffff,sdget:new,sdset:empty::0,sdget:empty,reply:200:x" + over,
	}},
	{fact: "8", name: "keys stay", steps: []string{"get rh=sdget:k,sdget:new,sdget:empty,reply:200:x"}},
	{fact: "9", name: "queue", steps: []string{"get rh=enq:q:one,reply:200:x", "b get rh=enq:q:two,enq:q:three,reply:200:x", "c get rh=qres::other,deqid:999,enqid:999:x,reply:200:x"}},
	{fact: "11", name: "refused callouts", steps: []string{"get rh=call:nowhere:0,call:facts_c:0:method,call:facts_c:0:path,call:facts_c:0:authority,call:facts_c:0xffffffff,reply:200:x" + over}},
	{fact: "12", name: "a call outlives its stream", steps: []string{"get rh=pause,call:facts_c:0" + over, "leave", "answer 200 late"}},
	{fact: "13", name: "timeout of a call", steps: []string{"get rh=pause,call:facts_c:50;cb=status,pairs:6:names,get:6::status,buffer:4:0:200,effective:self,reply:200:x" + over, "await a delete"}},
	{fact: "13", name: "callee hangs up", steps: []string{"get rh=pause,call:facts_c:0;cb=status,get:6::status,buffer:4:0:200,effective:self,reply:200:x" + over, "hangup"}},
	{fact: "13", name: "answer of a call", steps: []string{"get rh=pause,call:facts_c:0;cb=status,get:6::status,get:6:content-length,buffer:4:0:200,buffersize:4,setbuffer:4:0:0:x,replace:6:a:b,effective:self,reply:200:x" + over, "answer 201 hello"}},
	{fact: "19", name: "upstream hangs up", steps: []string{"get sh=get:2::status,prop:response.flags,prop:response.code_details;sb=buffer:1:0:200" + last, "break"}},
	{fact: "19", name: "upstream hangs up mid-response", steps: []string{"get sh=;sb=" + last, "status 200", "write abc", "break"}},
	{fact: "19", name: "upstream hangs up while the headers are held", steps: []string{"get sh=pause;sb=" + last, "status 200", "break"}},
	{fact: "19", name: "details and headers", show: "x-a content-type content-length", steps: []string{"get rh=reply:403:no:some reason::x-a:b:content-type:text/html;sh=get:2:x-a,prop:response.code_details" + last}},
	{fact: "19", name: "no body", show: "content-type content-length", steps: []string{"get rh=reply:204::::content-type:text/html:content-length:5"}},
	{fact: "21", name: "client leaves", steps: []string{"get sh=;sb=" + last, "leave"}},
	{fact: "21", name: "client leaves while paused", steps: []string{"get rh=pause;sh=;sb=" + last, "leave"}},
	{fact: "21", name: "client leaves mid-response", steps: []string{"get sh=;sb=" + last, "status 200", "write abc", "leave"}},
	{fact: "22", name: "request headers after continue", steps: []string{"post rh=get:0::path,size:0;rb=get:0::path,size:0,pairs:0,replace:0:a:b,prop:request.path,prop:request.host,prop:request.method;sh=get:0::path,prop:request.path" + last, "send abc", "finish", "status 200 end"}},
	{fact: "22", name: "response headers after continue", steps: []string{"get sh=get:2::status;sb=get:2::status,size:2,pairs:2,replace:2:a:b,prop:response.code" + last, "status 200", "write abc", "writefinish"}},
	{fact: "22", name: "header edits", show: "x-new x-twice x-script", steps: []string{"get rh=add:0:x-new:1,add:0:x-new:2,get:0:x-new,get:0:X-NEW,replace:0:x-twice:3,remove:0:x-script,get:0:x-script,add:0:Te:trailers,replace:0:x-empty:,get:0:x-empty,get:0:none", "status 200 end"}},
	{fact: "23", name: "trailers", steps: []string{"post rt=get:1:t,add:1:u:2,size:1;st=get:3:t,replace:3:t:3" + last, "send abc", "trailers t=1", "status 200", "write abc", "writetrailers t=2"}},
	{fact: "23", name: "trailers added", steps: []string{"post rb2=add:1:t:1;sb2=add:3:u:2" + over, "send abc", "finish", "status 200", "write abc", "writefinish"}},
	{fact: "25", name: "properties of a request", steps: []string{"get rh=prop:plugin_name,prop:plugin_root_id,prop:plugin_vm_id,prop:request.method,prop:request.path,prop:request.url_path,prop:request.host,prop:request.scheme,prop:request.protocol,prop:request.size,prop:xds.route_name,prop:xds.cluster_name,prop:response.code,prop:nothing,setprop:mine:1,prop:mine,reply:200:x"}},
	{fact: "25", name: "properties of a response", steps: []string{"get sh=prop:response.code,prop:response.code_details,prop:response.flags,prop:upstream.request_attempt_count;sb=prop:response.code,prop:request.path" + last, "status 201", "write abc", "writefinish"}},
	{fact: "26", name: "metrics", steps: []string{"get rh=define:0:c,inc:c:1,metric:c,inc:c:0,inc:c:-1,metric:c,define:1:g,inc:g:5,inc:g:-2,metric:g,record:g:9,metric:g,define:2:h,record:h:5,metric:h,inc:h:1,define:9:x,metric:999,reply:200:x"}},
	{fact: "18", name: "buffer ranges", steps: []string{"post rb=buffer:0:0:2,buffer:0:1:99,buffer:0:9:1,buffer:9:0:1,buffersize:0,buffersize:9,setbuffer:0:1:1:x,setbuffer:0:9:0:end,setbuffer:0:0:0:pre,buffer:0:0:99,buffer:2:0:9,setbuffer:7:0:0:x" + over, "send abc", "finish", "status 200 end"}},
	{fact: "20", name: "resume of other things", steps: []string{"get rh=resume:2,resume:9,foreign:nothing,foreign:clear_route_cache,log:9:x,done,reply:200:x"}},
}}
