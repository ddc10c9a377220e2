package envoydiff

// over has the guest report a stream's end.
const over = ";log=;sdone=;delete="

var sites = []*site{plain, stopping, tight, tightStopping, nesting, closed, closedResponse, closedBody, closedResponseBody, closedNested, early, earlyQueue, ticking, facts, idling, failOpen, reload, reloadLater, streams}

// plain is a filter as most are configured.
var plain = &site{name: "plain", cases: []diffCase{
	{fact: "22", name: "header names", steps: []string{"post rh=pairs:0:names;sh=pairs:2:names", "finish", "status 200", "write abc", "writefinish"}},
	{fact: "16", name: "pause on headers stops everything", steps: []string{
		"post rh=pause,call:plain_c:0;rb=get:0::path;rt=;cb=effective:self,resume:0" + over, "send abc", "send def", "finish", "answer 200",
		"status 200", "write hello", "writefinish",
	}},
	{fact: "16", name: "pause on headers with trailers", steps: []string{
		"post rh=pause,call:plain_c:0;rb=;rt=get:1:t;cb=effective:self,resume:0" + over, "send abc", "trailers t=1", "answer 200", "status 200 end",
	}},
	{fact: "16", name: "pause on headers with an empty body", steps: []string{
		"post rh=pause,call:plain_c:0;rb=;cb=effective:self,resume:0" + over, "finish", "answer 200", "status 200 end",
	}},
	{fact: "16", name: "pause on headers without a body", steps: []string{
		"get rh=pause,call:plain_c:0;rb=;cb=effective:self,resume:0" + over, "answer 200", "status 200 end",
	}},
	{fact: "16", name: "continue opens upstream", steps: []string{"post rh=;rb=" + over, "send abc", "finish", "status 200 end"}},
	{fact: "16", name: "pause on response headers", steps: []string{
		"get sh=pause,call:plain_c:0;sb=buffer:1:0:99;cb=effective:self,get:2::status,resume:1" + over, "status 200", "write abc", "write def", "writefinish", "answer 200",
	}},
	{fact: "16", name: "pause on response headers with trailers", steps: []string{
		"get sh=pause,call:plain_c:0;sb=buffer:1:0:99;st=get:3:t;cb=effective:self,get:2::status,resume:1" + over, "status 200", "write abc", "writetrailers t=1", "answer 200",
	}},
	{fact: "18", name: "pause on body", steps: []string{"post rb=pause;rb2=" + over, "send abc", "send def", "finish", "status 200 end"}},
	{fact: "18", name: "the end of a response waits", steps: []string{"get sb2=pause,call:plain_c:0;cb=effective:self,resume:1" + over, "status 200", "write abc", "writefinish", "answer 200"}},
	{fact: "18", name: "pass through", steps: []string{"post rh=;rb=;rt=;sh=;sb=;st=" + over, "send abc", "send def", "trailers t=1", "status 200", "write hello", "write you", "writetrailers t=2"}},
	{fact: "18", name: "no buffering drops", steps: []string{"post rb=action:3;rb2=action:3,call:plain_c:0;cb=effective:self,resume:0" + over, "send abc", "finish", "answer 200", "status 200 end"}},
	{fact: "18", name: "no buffering then buffering", steps: []string{"post rb=action:3,buffer:0:0:99;rb2=pause,buffer:0:0:99;rb3=buffer:0:0:99" + over, "send abc", "send def", "send ghi", "finish", "status 200 end"}},
	{fact: "18", name: "watermark then continue", steps: []string{"post rb=action:2,buffer:0:0:99;rb3=buffer:0:0:99" + over, "send abc", "send def", "send ghi", "finish", "status 200 end"}},
	{fact: "18", name: "watermark then buffer", steps: []string{"post rb=action:2,buffer:0:0:99;rb2=pause,buffer:0:0:99;rb3=buffer:0:0:99" + over, "send abc", "send def", "send ghi", "finish", "status 200 end"}},
	{fact: "18", name: "buffer then watermark", steps: []string{"post rb=pause,buffer:0:0:99;rb2=action:2,buffer:0:0:99;rb3=buffer:0:0:99" + over, "send abc", "send def", "send ghi", "finish", "status 200 end"}},
	{fact: "18", name: "edits while buffering", steps: []string{"post rb=pause;rb2=pause,setbuffer:0:0:0:pre,buffer:0:0:99;rb3=setbuffer:0:0:99:new,buffer:0:0:99" + over, "send abc", "send def", "send ghi", "finish", "status 200 end"}},
	{fact: "18", name: "edits while watermarking", steps: []string{"post rb=action:2,setbuffer:0:0:0:p,buffer:0:0:99;rb3=setbuffer:0:99:0:end" + over, "send abc", "send def", "send ghi", "finish", "status 200 end"}},
	{fact: "18", name: "edits without buffering", steps: []string{"post rb=action:3,setbuffer:0:0:99:p,buffer:0:0:99;rb3=setbuffer:0:99:0:end" + over, "send abc", "send def", "send ghi", "finish", "status 200 end"}},
	{fact: "18", name: "response watermark then continue", steps: []string{"get sb=action:2,buffer:1:0:99;sb3=buffer:1:0:99" + over, "status 200", "write abc", "write def", "write ghi", "writefinish"}},
	{fact: "18", name: "response without buffering", steps: []string{"get sb=action:3,buffer:1:0:99;sb3=buffer:1:0:99" + over, "status 200", "write abc", "write def", "write ghi", "writefinish"}},
	{fact: "18", name: "response edits while buffering", steps: []string{"get sb=pause;sb2=pause,setbuffer:1:0:0:pre,buffer:1:0:99;sb3=setbuffer:1:0:99:new,buffer:1:0:99" + over, "status 200", "write abc", "write def", "write ghi", "writefinish"}},
	{fact: "18", name: "resume from a body callback", steps: []string{"post rb=pause;rb2=pause,resume:0" + over, "send abc", "send def", "send ghi", "finish", "status 200 end"}},
	{fact: "18", name: "edits from a callout's answer", steps: []string{
		"post rb=pause;rb2=pause,call:plain_c:0;cb=effective:self,buffer:0:0:99,setbuffer:0:0:99:new,buffer:0:0:99,resume:0" + over, "send abc", "send def", "answer 200", "send ghi", "finish", "status 200 end",
	}},
}}

// stopping has allow_on_headers_stop_iteration.
var stopping = &site{name: "stopping", allow: true, cases: []diffCase{
	{fact: "17", name: "continue releases headers", steps: []string{"post rh=pause;rb=" + over, "send abc", "send def", "finish", "status 200 end"}},
	{fact: "17", name: "pausing body collects", steps: []string{"post rh=pause;rb=pause,buffer:0:0:99;rb3=buffer:0:0:99,replace:0:x-digest:d,get:0:x-digest" + over, "send abc", "send def", "finish", "status 200 end"}, show: "x-digest"},
	{fact: "17", name: "resume from a callout's answer", steps: []string{
		"post rh=pause;rb=pause;rb2=pause,call:stopping_c:0;cb=effective:self,get:0::path,buffer:0:0:99,setbuffer:0:0:99:new,resume:0,get:0::path" + over,
		"send abc", "finish", "answer 200", "status 200 end",
	}},
	{fact: "17", name: "watermark holds the headers", steps: []string{"post rh=pause;rb=action:2,buffer:0:0:99;rb3=buffer:0:0:99" + over, "send abc", "send def", "finish", "status 200 end"}},
	{fact: "17", name: "no buffering holds the headers", steps: []string{"post rh=pause;rb=action:3,buffer:0:0:99;rb3=buffer:0:0:99" + over, "send abc", "send def", "finish", "status 200 end"}},
	{fact: "17", name: "no buffering and a body made new", steps: []string{"post rh=pause;rb=action:3;rb3=setbuffer:0:0:0:all" + over, "send abc", "send def", "finish", "status 200 end"}},
	{fact: "17", name: "response headers without buffering", steps: []string{"get sh=pause;sb=action:3,buffer:1:0:99;sb3=setbuffer:1:0:0:all,replace:2:x-made:new" + over, "status 200", "write abc", "write def", "writefinish"}, show: "x-made"},
	{fact: "17", name: "response headers while watermarking", steps: []string{"get sh=pause;sb=action:2,buffer:1:0:99;sb3=setbuffer:1:0:0:all,replace:2:x-made:new" + over, "status 200", "write abc", "write def", "writefinish"}, show: "x-made"},
	{fact: "17", name: "trailers end a collected body", steps: []string{"post rh=pause;rb=pause;rt=" + over, "send abc", "trailers t=1", "status 200 end"}},
	{fact: "17", name: "trailers pause a collected body", steps: []string{"post rh=pause;rb=pause;rt=pause,call:stopping_c:0;cb=effective:self,get:1:t,resume:0" + over, "send abc", "trailers t=1", "answer 200", "status 200 end"}},
	{fact: "19", name: "reply from a body callback without buffering", steps: []string{"post rh=pause;rb=action:3;rb3=reply:200:mine,action:3;sh=;sb=" + over, "send abc", "send def", "finish"}},
	{fact: "19", name: "reply later without buffering", steps: []string{"post rh=pause;rb=action:3;rb3=action:3,call:stopping_c:0;cb=effective:self,reply:200:mine;sh=;sb=" + over, "send abc", "send def", "finish", "answer 200"}},
	{fact: "19", name: "response reply without buffering", steps: []string{"get sh=pause;sb=action:3;sb3=action:3,reply:200:mine" + over, "status 200", "write abc", "write def", "writefinish"}},
	{fact: "19", name: "response reply later without buffering", steps: []string{"get sh=pause;sb=action:3;sb3=action:3,call:stopping_c:0;cb=effective:self,reply:200:mine" + over, "status 200", "write abc", "write def", "writefinish", "answer 200"}},
}}

// earlyQueue shows that the queue callback that a filter asks for on headers comes when the rest of the
// packet has been read, and that a pause that lets no body pass does not keep Envoy from seeing the end.
var earlyQueue = &site{name: "earlyqueue", plugin: "configure=qreg:early_q;queue=deq:early_q,others:reply:200:x", cases: []diffCase{
	{fact: "32", name: "reply from the queue to a whole request", show: "connection", steps: []string{"whole rh=action:4,enq:early_q:one"}},
	{fact: "32", name: "reply from the queue before a body", show: "connection", steps: []string{"post rh=action:4,enq:early_q:one"}},
}}

// ticking shows that a new period counts from the moment at which it is set, also for a timer that runs.
var ticking = &site{name: "ticking", plugin: "configure=tick:600000;tick=tick:600000,others:reply:200:x", cases: []diffCase{
	{fact: "24", name: "a shorter period", steps: []string{"get rh=action:4,tick:1", "await tick: others"}},
}}

// early shows when Envoy closes a connection because the response began before the
// request's end.
var early = &site{name: "early", allow: true, cases: []diffCase{
	{fact: "32", name: "reply to whole headers", show: "connection", steps: []string{"get rh=reply:200:x"}},
	{fact: "32", name: "reply before a body", show: "connection", steps: []string{"post rh=reply:200:x"}},
	{fact: "32", name: "reply to a whole request in one packet", show: "connection", steps: []string{"whole rh=reply:200:x"}},
	{fact: "32", name: "reply to a body", show: "connection", steps: []string{"post rh=pause;rb=pause;rb1=pause,reply:200:x", "send abc"}},
	{fact: "32", name: "reply to a body's end", show: "connection", steps: []string{"post rh=pause;rb=pause;rb2=pause,reply:200:x", "send abc", "finish"}},
	{fact: "32", name: "reply later to a whole request", show: "connection", steps: []string{"whole rh=action:4,call:early_c:0;cb=effective:self,reply:200:x", "answer 200"}},
	{fact: "32", name: "reply later to a part", show: "connection", steps: []string{"post rh=action:4,call:early_c:0;cb=effective:self,reply:200:x", "send abc", "answer 200"}},
	{fact: "32", name: "reply held until the request is complete", show: "connection", steps: []string{"post rh=reply:200:x;sh=action:4,call:early_c:0;cb=effective:self,resume:1", "finish", "answer 200"}},
	{fact: "32", name: "upstream answers early", show: "connection", steps: []string{"post rh=", "send abc", "status 200 end"}},
	{fact: "32", name: "upstream answers a whole request", show: "connection", steps: []string{"post rh=", "send abc", "finish", "status 200 end"}},
}}
