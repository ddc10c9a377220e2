package envoydiff

import "time"

// nesting shows in which order Envoy does what callbacks put off, and the callbacks that
// this leads to.
var nesting = &site{name: "nesting", cases: []diffCase{
	{fact: "30", name: "replies nest", steps: []string{
		"a get rh=pause;sh=;sb=" + over, "b get rh=pause;sh=;sb=" + over, "c get rh=pause;sh=;sb=" + over,
		"t get rh=others:reply:409:x,reply:200:mine;sh=;sb=" + over,
	}},
	{fact: "30", name: "a reply in a nested callback comes last", steps: []string{
		"a get rh=pause;sh=" + over, "b get rh=pause;sh=others:reply:410:b" + over, "c get rh=pause;sh=" + over, "d get rh=pause;sh=" + over,
		"t get rh=effective:self,others:reply:409:x;sh=;sb=" + over, "t leave",
	}},
	{fact: "30", name: "resumes with bodies nest", steps: []string{
		"a post rh=pause;rb=" + over, "a send abc", "b post rh=pause;rb=" + over, "b send def", "c get rh=pause" + over,
		"t get rh=others:resume:0,reply:200:mine;sh=;sb=" + over,
		"a finish", "b finish", "a status 200 end", "b status 200 end", "c status 200 end",
	}},
	{fact: "30", name: "resumed responses nest", steps: []string{
		"a get sh=pause;sb=" + over, "a status 200", "a write abc", "a writefinish", "b get sh=pause;sb=" + over, "b status 200", "b write def", "b writefinish",
		"t get rh=others:resume:1,reply:200:mine;sh=;sb=" + over,
	}},
	{fact: "30", name: "replies from a tick-like callback", steps: []string{
		"a get rh=pause;sh=" + over, "b get rh=pause;sh=" + over, "t get rh=pause,call:nesting_c:0;cb=others:reply:409:x,effective:self,reply:200:mine;sh=" + over, "answer 200",
	}},
	{fact: "30", name: "replies from on_log", steps: []string{
		"a get rh=pause;sh=" + over, "b get rh=pause;sh=" + over, "t get rh=reply:200:mine;sh=;log=others:reply:409:x;sdone=;delete=",
	}},
	{fact: "30", name: "what is asked first is done first", steps: []string{
		"a get rh=pause;sh=" + over, "t get rh=others:reply:409:x,others:resume:0,reply:200:mine;sh=" + over,
	}},
	{fact: "19", name: "two replies", steps: []string{"a get rh=reply:200:x,reply:201:y;sh=;sb=" + over}},
	{fact: "19", name: "a reply to a reply's headers", steps: []string{"a get rh=reply:200:x;sh=reply:201:y;sb=" + over}},
	{fact: "19", name: "a reply to a reply's body", steps: []string{"a get rh=reply:200:x;sh=;sb=reply:201:y" + over}},
	{fact: "19", name: "a reply to a paused reply", steps: []string{"a get rh=reply:200:x;sh=pause,call:nesting_c:0;sb=;cb=effective:self,reply:201:y" + over, "answer 200"}},
	{fact: "19", name: "a reply to a paused reply's body", steps: []string{"a get rh=reply:200:x;sh=;sb=pause,call:nesting_c:0;cb=effective:self,reply:201:y" + over, "answer 200"}},
	{fact: "19", name: "a reply to a passing response", steps: []string{"a get sh=reply:201:y;sb=" + over, "status 200"}},
	{fact: "19", name: "a reply to a passing response's body", steps: []string{"a get sh=;sb=reply:201:y" + over, "status 200", "write abc"}},
	{fact: "19", name: "a reply while upstream works", steps: []string{"a get rh=call:nesting_c:0;sh=;sb=;cb=effective:self,reply:201:y" + over, "answer 200"}},
	{fact: "20", name: "resume and then answer", blind: true, steps: []string{
		"a get rh=pause,call:nesting_c:0;cb=effective:self,resume:0,reply:409:late;sh=;sb=" + over, "answer 200",
	}},
	{fact: "20", name: "close streams", steps: []string{
		"a get rh=pause;sh=" + over, "b get rh=pause;sh=" + over, "t get rh=others:close:0,reply:200:mine;sh=;log=prop:response.code_details",
	}},
	{fact: "20", name: "close itself", steps: []string{"a get rh=close:0,pause;sh=;log=prop:response.code_details;sdone=;delete="}},
	{fact: "20", name: "close a response", steps: []string{"a get sh=close:1,pause;log=prop:response.code_details;sdone=;delete=", "status 200"}},
	{fact: "20", name: "a deleted stream's context", steps: []string{"a get rh=reply:200:x,effective:9999,effective:self" + over}},
}}

// closed, open and reload lose their VM in their last case.
var closed = &site{name: "closed", cases: []diffCase{
	{fact: "4", name: "trap fails closed", steps: []string{"a get rh=pause;sh=" + over, "b get rh=trap;sh=" + over, "c get rh=;sh=" + over, "a leave"}},
}}

var closedResponse = &site{name: "closed_response", cases: []diffCase{
	{fact: "4", name: "trap on a response", steps: []string{"a get sh=pause;sb=" + over, "a status 200", "b get sh=trap;sb=" + over, "b status 200", "a write abc", "c get rh=", "a leave"}},
}}

var closedBody = &site{name: "closed_body", cases: []diffCase{
	{fact: "4", name: "trap on a body", steps: []string{"a post rb=" + over, "a send abc", "b post rb=trap;sb=" + over, "b send abc", "a send def", "a finish"}},
}}

var closedResponseBody = &site{name: "closed_response_body", cases: []diffCase{
	{fact: "4", name: "trap on a response body", steps: []string{"a get sb=;sh=", "a status 200", "b get sb=trap;sh=" + over, "b status 200", "b write abc", "a write def", "a writefinish"}},
}}

var closedNested = &site{name: "closed_nested", cases: []diffCase{
	{fact: "30", name: "trap in a nested reply", steps: []string{
		"a get rh=pause;sh=" + over, "b get rh=pause;sh=trap" + over, "c get rh=pause;sh=" + over, "d get sh=", "d status 200",
		"t get rh=others:reply:409:x,reply:200:mine;sh=" + over, "d write abc", "d writefinish", "e get rh=",
	}},
}}

// idling ends streams of a dead VM.
var idling = &site{name: "idling", idle: 4 * time.Second, cases: []diffCase{
	{fact: "4", name: "idle streams", steps: []string{"a get rh=pause;sh=;log=prop:response.flags,prop:response.code_details", "b post rh=;sh=;log=prop:response.flags,prop:response.code_details", "c get sh=;log=prop:response.code_details", "c status 200", "await c log: prop"}},
	{fact: "4", name: "idle streams of a dead VM", steps: []string{"a get rh=pause;sh=" + over, "b post rh=;sh=" + over, "c get sh=;sb=" + over, "c status 200", "t get rh=trap", "await c down: 200 cut"}},
}}

var failOpen = &site{name: "open", policy: "FAIL_OPEN", cases: []diffCase{
	{fact: "4", name: "trap fails open", steps: []string{"a get rh=pause;sh=" + over, "b get rh=trap;sh=" + over, "c get rh=;sh=" + over, "c status 200 end", "a leave"}},
}}

// shortBackoff is over when a case begins. Envoy crashes on one of a millisecond.
const shortBackoff = 10 * time.Millisecond

var reload = &site{name: "reload", policy: "FAIL_RELOAD", backoff: shortBackoff, cases: []diffCase{
	{fact: "4", name: "trap and reload", steps: []string{"a get rh=pause;sh=" + over, "b get rh=trap;sh=" + over, "c get rh=;sh=" + over, "c status 200 end", "a leave"}},
}}

var reloadLater = &site{name: "reload_later", policy: "FAIL_RELOAD", backoff: time.Hour, cases: []diffCase{
	{fact: "4", name: "no reload soon after the load", steps: []string{"b get rh=trap;sh=" + over, "c get rh=;sh=" + over}},
}}
