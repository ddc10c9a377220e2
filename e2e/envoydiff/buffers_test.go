package envoydiff

// small is a buffer limit that one packet can fill: what the test writes at once, up to
// some 32 kB, Envoy reads at once.
const small = 32 << 10

// tight has a small buffer limit.
var tight = &site{name: "tight", limit: small, cases: []diffCase{
	{fact: "18", name: "request too large after its headers went on", steps: []string{"post rb=pause;sh=;sb=" + over, "send *20000", "send *20000"}},
	{fact: "18", name: "response too large after its headers went on", steps: []string{"get sb=pause" + over, "status 200", "write *20000", "write *20000"}},
	{fact: "18", name: "back pressure while all is stopped", steps: []string{
		"post rh=pause,call:tight_c:0;rb=;cb=effective:self,resume:0" + over, "send *30000", "send *30000", "send *30000", "answer 200", "finish", "status 200 end",
	}},
	{fact: "18", name: "what was held with all stopped is then collected", steps: []string{
		"post rh=pause,call:tight_c:0;rb=pause;rb2=pause,call:tight_c:0;cb=effective:self,resume:0;sh=" + over, "send *30000", "send *30000", "send *30000", "answer 200", "finish",
	}},
	{fact: "18", name: "what was held below the limit with all stopped is then collected", steps: []string{
		"post rh=pause,call:tight_c:0;rb=pause;cb=effective:self,resume:0;sh=" + over, "send *30000", "answer 200", "send *30000",
	}},
	{fact: "18", name: "back pressure on a response while all is stopped", steps: []string{
		"get sh=pause,call:tight_c:0;sb=;cb=effective:self,resume:1" + over, "status 200", "write *30000", "write *30000", "write *30000", "answer 200", "writefinish",
	}},
	{fact: "18", name: "a response that was held with all stopped is then collected", steps: []string{
		"get sh=pause,call:tight_c:0;sb=pause;cb=effective:self,resume:1" + over, "status 200", "write *30000", "write *30000", "write *30000", "answer 200", "writefinish",
	}},
	{fact: "18", name: "watermark holds more than the limit", steps: []string{"post rb=action:2;rb3=" + over, "send *20000", "send *20000", "send *20000", "finish", "status 200 end"}},
	{fact: "18", name: "watermark and a resume from outside", steps: []string{
		"post rb=action:2;rb2=action:2,call:tight_c:0;rb3=;rb4=;cb=effective:self,resume:0" + over, "send *20000", "send *20000", "send *20000", "answer 200", "finish", "status 200 end",
	}},
	{fact: "18", name: "watermark below the limit then buffering", steps: []string{"post rb=action:2;rb2=pause;sh=" + over, "send *20000", "send *20000"}},
	{fact: "18", name: "buffering below the limit then watermark", steps: []string{"post rb=pause;rb2=action:2;rb3=" + over, "send *20000", "send *10000", "send *20000", "finish", "status 200 end"}},
	{fact: "18", name: "buffering over the limit then watermark", steps: []string{"post rb=pause;rb2=action:2;sh=" + over, "send *20000", "send *20000"}},
	{fact: "18", name: "no buffering has no limit", steps: []string{"post rb=action:3;rb5=fillbuffer:0:100000;rb6=" + over, "send *30000", "send *30000", "send *30000", "send *30000", "send *30000", "finish", "status 200 end"}},
	{fact: "18", name: "response watermark holds more than the limit", steps: []string{"get sb=action:2;sb3=" + over, "status 200", "write *20000", "write *20000", "write *20000", "writefinish"}},
	{fact: "18", name: "response watermark and a resume from outside", steps: []string{
		"get sb=action:2;sb2=action:2,call:tight_c:0;sb3=;sb4=;cb=effective:self,resume:1" + over, "status 200", "write *20000", "write *20000", "write *20000", "answer 200", "writefinish",
	}},
	{fact: "18", name: "response watermark below the limit then buffering", steps: []string{"get sb=action:2;sb2=pause" + over, "status 200", "write *20000", "write *20000"}},
	{fact: "18", name: "response without buffering has no limit", steps: []string{"get sb=action:3;sb5=fillbuffer:1:100000;sb6=" + over, "status 200", "write *30000", "write *30000", "write *30000", "write *30000", "write *30000", "writefinish"}},
}}

// tightStopping has allow_on_headers_stop_iteration as well: the headers are held with
// the body.
var tightStopping = &site{name: "tight_stopping", limit: small, allow: true, cases: []diffCase{
	{fact: "18", name: "request at the limit", steps: []string{"post rh=pause;rb=pause;rb3=" + over, "send *20000", "send *12768", "finish", "status 200 end"}},
	{fact: "18", name: "request over the limit", steps: []string{"post rh=pause;rb=pause;sh=get:2::status,prop:response.code_details;sb=;log=prop:response.code_details,prop:response.flags", "send *20000", "send *12768", "send x"}},
	{fact: "18", name: "stop all and buffer over the limit", steps: []string{"post rh=action:3;rb=;sh=;sb=" + over, "send *20000", "send *20000"}},
	{fact: "18", name: "stop all and buffer then go on", steps: []string{"post rh=action:3,call:tight_stopping_c:0;rb=;cb=effective:self,resume:0" + over, "send *20000", "answer 200", "finish", "status 200 end"}},
	{fact: "18", name: "stop all and watermark over the limit", steps: []string{"post rh=action:4,call:tight_stopping_c:0;rb=;cb=effective:self,resume:0" + over, "send *20000", "send *20000", "answer 200", "finish", "status 200 end"}},
	{fact: "18", name: "response stop all and buffer over the limit", steps: []string{"get sh=action:3;sb=" + over, "status 200", "write *20000", "write *20000"}},
	{fact: "18", name: "request over the limit, 413 paused", steps: []string{"post rh=pause;rb=pause;sh=pause,call:tight_stopping_c:0;cb=effective:self,resume:1;sb=" + over, "send *20000", "send *20000", "answer 200"}},
	{fact: "18", name: "request over the limit, 413 answered", steps: []string{"post rh=pause;rb=pause;sh=reply:409:mine;sb=" + over, "send *20000", "send *20000"}},
	{fact: "18", name: "request over the limit, answered", steps: []string{"post rh=pause;rb=pause;rb2=reply:409:mine,pause;sh=;sb=" + over, "send *20000", "send *20000"}},
	{fact: "18", name: "request over the limit, continued", steps: []string{"post rh=pause;rb=pause;rb2=;sh=;sb=" + over, "send *20000", "send *20000", "finish"}},
	{fact: "18", name: "request over the limit, emptied", steps: []string{"post rh=pause;rb=pause;rb2=setbuffer:0:0:100000:,pause;sh=;sb=" + over, "send *20000", "send *20000", "finish"}},
	{fact: "18", name: "request over the limit without buffering", steps: []string{"post rh=pause;rb=pause;rb2=action:3;sh=;sb=" + over, "send *20000", "send *20000", "finish"}},
	{fact: "18", name: "request made too large", steps: []string{"post rh=pause;rb=pause;rb2=pause,fillbuffer:0:40000;sh=;sb=" + over, "send abc", "send def"}},
	{fact: "18", name: "request made too large and continued", steps: []string{"post rh=pause;rb=pause;rb2=fillbuffer:0:40000;sh=;sb=" + over, "send abc", "send def"}},
	{fact: "18", name: "request made too large by a new piece", steps: []string{"post rh=pause;rb=pause;rb1=pause,fillbuffer:0:40000;sh=;sb=" + over, "send abc"}},
	{fact: "18", name: "request made too large by a callout's answer", steps: []string{
		"post rh=pause;rb=pause;rb2=pause,call:tight_stopping_c:0;cb=effective:self,fillbuffer:0:40000;sh=;sb=" + over, "send abc", "send def", "answer 200",
	}},
	{fact: "18", name: "request made too large by a callout's answer that resumes", steps: []string{
		"post rh=pause;rb=pause;rb2=pause,call:tight_stopping_c:0;cb=effective:self,fillbuffer:0:40000,resume:0;sh=;sb=" + over, "send abc", "send def", "answer 200",
	}},
	{fact: "18", name: "request collected by the filter itself and sent on", steps: []string{
		"post rh=pause;rb=action:3;rb4=fillbuffer:0:90000,replace:0:x-made:new" + over, "send *30000", "send *30000", "send *30000", "finish", "status 200 end"}, show: "x-made"},
	{fact: "18", name: "request collected by the filter itself and held with a watermark", steps: []string{
		"post rh=pause;rb=action:3;rb4=fillbuffer:0:90000,action:2,call:tight_stopping_c:0;cb=effective:self,replace:0:x-made:new,resume:0" + over,
		"send *30000", "send *30000", "send *30000", "finish", "answer 200", "status 200 end"}, show: "x-made"},
	{fact: "18", name: "request collected by the filter itself and held with buffering", steps: []string{
		"post rh=pause;rb=action:3;rb4=fillbuffer:0:90000,pause;sh=;sb=" + over, "send *30000", "send *30000", "send *30000", "finish"}},
	{fact: "18", name: "request collected by the filter itself and given up", steps: []string{
		"post rh=pause;rb=action:3;rb3=fillbuffer:0:90000;rb4=;rb5=" + over, "send *30000", "send *30000", "send *30000", "send *30000", "finish", "status 200 end"}},
	{fact: "18", name: "request held with a watermark and then taken", steps: []string{
		"post rh=pause;rb=action:2;rb3=action:3;rb4=" + over, "send *10000", "send *10000", "send *10000", "finish", "status 200 end"}},
	{fact: "18", name: "watermark over the limit then the end", steps: []string{"post rh=pause;rb=action:2;rb3=" + over, "send *20000", "send *20000", "finish", "leave"}},
	{fact: "18", name: "response at the limit", steps: []string{"get sh=pause;sb=pause;sb3=" + over, "status 200", "write *20000", "write *12768", "writefinish"}},
	{fact: "18", name: "response over the limit", steps: []string{"get sh=pause;sb=pause;log=get:2::status,prop:response.code_details,prop:response.flags", "status 200", "write *20000", "write *12768", "write x"}},
	{fact: "18", name: "response made too large", steps: []string{"get sh=pause;sb=pause;sb2=pause,fillbuffer:1:40000" + over, "status 200", "write abc", "write def"}},
	{fact: "18", name: "response made too large and continued", steps: []string{"get sh=pause;sb=pause;sb2=fillbuffer:1:40000" + over, "status 200", "write abc", "write def"}},
	{fact: "18", name: "response made too large by a new piece", steps: []string{"get sh=pause;sb=pause,fillbuffer:1:40000" + over, "status 200", "write abc"}},
	{fact: "18", name: "response made too large by a callout's answer that resumes", steps: []string{
		"get sh=pause;sb=pause;sb2=pause,call:tight_stopping_c:0;cb=effective:self,fillbuffer:1:40000,resume:1" + over, "status 200", "write abc", "write def", "answer 200",
	}},
	{fact: "18", name: "response collected by the filter itself and sent on", steps: []string{
		"get sh=pause;sb=action:3;sb4=fillbuffer:1:90000,replace:2:x-made:new" + over, "status 200", "write *30000", "write *30000", "write *30000", "writefinish"}, show: "x-made"},
	{fact: "18", name: "response collected by the filter itself and held with a watermark", steps: []string{
		"get sh=pause;sb=action:3;sb4=fillbuffer:1:90000,action:2,call:tight_stopping_c:0;cb=effective:self,replace:2:x-made:new,resume:1" + over,
		"status 200", "write *30000", "write *30000", "write *30000", "writefinish", "answer 200"}, show: "x-made"},
	{fact: "18", name: "response collected by the filter itself and held with buffering", steps: []string{
		"get sh=pause;sb=action:3;sb4=fillbuffer:1:90000,pause" + over, "status 200", "write *30000", "write *30000", "write *30000", "writefinish"}},
	{fact: "18", name: "response given up over the limit", steps: []string{
		"get sh=pause;sb=action:3;sb3=fillbuffer:1:90000;sb4=;sb5=" + over, "status 200", "write *30000", "write *30000", "write *30000", "write *30000", "writefinish"}},
	{fact: "18", name: "response watermark over the limit then the end", steps: []string{"get sh=pause;sb=action:2;sb3=" + over, "status 200", "write *20000", "write *20000", "writefinish"}},
	{fact: "18", name: "response over the limit with a watermark then answered", steps: []string{"get sh=pause;sb=action:2;sb2=action:2,reply:502:mine" + over, "status 200", "write *20000", "write *20000", "writefinish"}},
	{fact: "18", name: "a large local reply passes", steps: []string{"get rh=reply:200:x;sh=pause,remove:2:content-length;sb=fillbuffer:1:40000" + over}},
	{fact: "18", name: "a large local reply collected", steps: []string{"get rh=reply:200:x;sh=pause,remove:2:content-length;sb=pause,fillbuffer:1:40000" + over}},
}}
