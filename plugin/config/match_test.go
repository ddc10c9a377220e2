package config

import (
	"strconv"
	"strings"
	"testing"
)

func TestRulesMatchMethodsAndPaths(t *testing.T) {
	type try struct {
		method, path string
		want         bool
	}
	for rule, tries := range map[string][]try{
		`{}`: {
			{"POST", "/", true}, {"PATCH", "/x/y?z", true}, {"GET", "/", false}, {"PUT", "/", false},
			{"post", "/", false}, {"POST", "*", false}, {"POST", "", false},
		},
		`{"methods": ["*"]}`:             {{"GET", "/", true}, {"OPTIONS", "/x", true}},
		`{"methods": ["PUT", "DELETE"]}`: {{"PUT", "/", true}, {"DELETE", "/", true}, {"POST", "/", false}},
		`{"path": "/a/b"}`:               {{"POST", "/a/b", true}, {"POST", "/a/b?c=/d", true}, {"POST", "/a/b#c", true}, {"POST", "/a/b/", false}, {"POST", "/a/bc", false}, {"POST", "/a", false}},
		`{"path_prefix": "/a"}`:          {{"POST", "/a", true}, {"POST", "/ab", true}, {"POST", "/a/b", true}, {"POST", "/b/a", false}, {"POST", "/?/a", false}},
		`{"path_pattern": "/a/*/c"}`:     {{"POST", "/a/b/c", true}, {"POST", "/a/b/c?d", true}, {"POST", "/a//c", false}, {"POST", "/a/b/x/c", false}, {"POST", "/a/b/c/", false}, {"POST", "/a/b", false}, {"POST", "/x/b/c", false}},
		`{"path_pattern": "/a/**"}`:      {{"POST", "/a/", true}, {"POST", "/a/b", true}, {"POST", "/a/b/c/", true}, {"POST", "/a", false}, {"POST", "/ab/c", false}},
		`{"path_pattern": "/*/jobs/**"}`: {{"POST", "/v1/jobs/", true}, {"POST", "/v1/jobs/x", true}, {"POST", "//jobs/x", false}, {"POST", "/v1/jobs", false}},
		`{"path_pattern": "/**"}`:        {{"POST", "/", true}, {"POST", "/a/b", true}, {"POST", "*", false}},
		`{"path_pattern": "/*"}`:         {{"POST", "/a", true}, {"POST", "/", false}, {"POST", "/a/", false}},
		`{"path_pattern": "/"}`:          {{"POST", "/", true}, {"POST", "/a", false}, {"POST", "", false}},
		`{"path_pattern": "/a/"}`:        {{"POST", "/a/", true}, {"POST", "/a", false}},
		`{"path_pattern": "/a//b"}`:      {{"POST", "/a//b", true}, {"POST", "/a/x/b", false}},
		`{"path_pattern": "/a/b"}`:       {{"POST", "/a/b", true}, {"POST", "/a/b?x/y", true}, {"POST", "/a/", false}, {"POST", "/a", false}},
	} {
		c := mustParse(t, `{"match": [`+rule+`]}`)
		for _, try := range tries {
			if got := c.Route(try.method, try.path) != nil; got != try.want {
				t.Errorf("%s: %s %s matches: %v, want %v", rule, try.method, try.path, got, try.want)
			}
		}
	}
}

// TestFirstMatchWins in the order of the list, not by how exact a rule is.
func TestFirstMatchWins(t *testing.T) {
	c := mustParse(t, `{"match": [
		{"path": "/a/b"}, {"path_prefix": "/a"}, {"path": "/a/c"}, {"methods": ["PUT"]}
	]}`)
	for path, want := range map[string]int{"/a/b": 0, "/a/c": 1, "/a": 1} {
		if r := c.Route("POST", path); r == nil || r.Index != want {
			t.Errorf("%s: %+v, want rule %d", path, r, want)
		}
	}
	if r := c.Route("PUT", "/a/b"); r == nil || r.Index != 3 {
		t.Errorf("PUT: %+v, want rule 3", r)
	}
	if r := c.Route("POST", "/x"); r != nil {
		t.Errorf("/x: %+v, want none", r)
	}
}

func TestLargestAnswerIsTheLargestOfTheRules(t *testing.T) {
	for text, want := range map[string]int{
		``:                               524288,
		`{"max_response_body_bytes": 5}`: 5,
		`{"match": [{"max_response_body_bytes": 7}, {}, {"max_response_body_bytes": 600000}]}`: 600000,
		`{"max_response_body_bytes": 900000, "match": [{"max_response_body_bytes": 7}]}`:       7,
	} {
		if got := mustParse(t, text).LargestAnswer(); got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
}

func TestRouteAllocatesNothing(t *testing.T) {
	c := mustParse(t, `{"match": [{"path": "/x"}, {"path_pattern": "/a/*/c"}, {"path_pattern": "/a/**"}]}`)
	ok := true
	n := testing.AllocsPerRun(100, func() {
		r := c.Route("POST", "/a/b/d?e=f")
		ok = ok && r != nil && r.Outcomes.Classify(503, true) == OutcomeRelease
	})
	if !ok || n != 0 {
		t.Errorf("ok %v, %v allocations per request, want 0", ok, n)
	}
}

// checkOutcomes takes statuses like "503", and "503 r" for one with Retry-After.
func checkOutcomes(t *testing.T, o *Outcomes, want map[string]Outcome) {
	t.Helper()
	for s, outcome := range want {
		code, retryAfter := strings.CutSuffix(s, " r")
		status, err := strconv.Atoi(code)
		if err != nil {
			t.Fatal(err)
		}
		if got := o.Classify(status, retryAfter); got != outcome {
			t.Errorf("%s is classified as %d, want %d", s, got, outcome)
		}
	}
	for _, status := range []int{-1, 0, 100, 101, 199, 1000} {
		if got := o.Classify(status, false); got != OutcomeNone {
			t.Errorf("%d is classified as %d, want none", status, got)
		}
	}
}

func TestCodeBeatsItsClass(t *testing.T) {
	for text, want := range map[string]map[string]Outcome{
		// A code beats its class, with and without the header.
		`{"reject": ["4xx", "503"]}`: {"503": OutcomeReject, "503 r": OutcomeReject, "502": OutcomeCommit, "502 r": OutcomeCommit},
		// A term with the header beats the same term without it. A code beats a class with the header.
		`{"release": ["5xx+retry-after", "4xx+retry-after"], "reject": ["4xx", "500"]}`: {
			"501": OutcomeCommit, "501 r": OutcomeRelease, "500": OutcomeReject, "500 r": OutcomeReject,
			"404": OutcomeReject, "404 r": OutcomeRelease, "429": OutcomeReject, "429 r": OutcomeRelease,
		},
		// Listed terms are removed from the inherited lists.
		`{"commit": ["2xx", "3xx", "4xx", "5xx", "429"]}`:      {"404": OutcomeCommit, "429": OutcomeCommit, "408": OutcomeRelease},
		`{"commit": ["2xx", "3xx", "5xx", "503"]}`:             {"503": OutcomeCommit, "503 r": OutcomeCommit},
		`{"commit": ["2xx", "3xx", "5xx", "503+retry-after"]}`: {"503": OutcomeCommit, "503 r": OutcomeCommit, "429": OutcomeRelease},
		// A list may be empty when the rest covers everything.
		`{"release": []}`: {"429": OutcomeReject, "503 r": OutcomeCommit},
		`{"commit": [], "reject": ["2xx", "3xx", "4xx", "5xx"], "release": []}`: {"200": OutcomeReject, "599": OutcomeReject},
	} {
		c := mustParse(t, `{"outcomes": `+text+`}`)
		checkOutcomes(t, &c.Route("POST", "/").Outcomes, want)
	}
	// Twice: a rule over the top level.
	c := mustParse(t, `{"outcomes": {"release": ["5xx"], "commit": ["2xx", "3xx"]}, "match": [{"outcomes": {"commit": ["2xx", "3xx", "500"]}}]}`)
	checkOutcomes(t, &c.Route("POST", "/").Outcomes, map[string]Outcome{"500": OutcomeCommit, "501": OutcomeRelease, "400": OutcomeReject})
}

func TestMethodFiltersRequests(t *testing.T) {
	for config, want := range map[string]map[string]bool{
		`{}`: {"POST": true, "PATCH": true, "GET": false, "": false, "post": false},
		`{"match":[{"methods":["PUT"],"path":"/a"},{"methods":["POST"],"path":"/b"}]}`: {"PUT": true, "POST": true, "PATCH": false},
		`{"match":[{"methods":["*"],"path":"/a"}]}`:                                    {"GET": true, "BREW": true},
	} {
		c, err := Parse([]byte(config))
		if err != nil {
			t.Fatal(err)
		}
		for method, may := range want {
			if c.Method(method) != may {
				t.Errorf("%s: Method(%q) = %v", config, method, !may)
			}
		}
	}
}

// TestOutcomes: outcomes that protocols and documents have.
func TestOutcomes(t *testing.T) {
	for text, want := range map[string]map[string]Outcome{
		`"protocol": "stripe-v1"`: {
			"200": OutcomeCommit, "303": OutcomeCommit, "402": OutcomeCommit, "408": OutcomeCommit, "500": OutcomeCommit, "503 r": OutcomeCommit,
			"400": OutcomeRelease, "401": OutcomeRelease, "409": OutcomeRelease, "429": OutcomeRelease, "429 r": OutcomeRelease,
		},
		`"outcomes": {"release": ["4xx", "5xx"]}`: {
			"200": OutcomeCommit, "303": OutcomeCommit, "400": OutcomeRelease, "402": OutcomeRelease, "500": OutcomeRelease, "503 r": OutcomeRelease,
		},
		`"protocol": "stripe-v2"`: {
			"200": OutcomeCommit, "303": OutcomeCommit, "402": OutcomeCommit, "500": OutcomeRelease, "503": OutcomeRelease, "503 r": OutcomeRelease,
			"400": OutcomeRelease, "401": OutcomeRelease, "409": OutcomeRelease, "429": OutcomeRelease,
		},
		`"outcomes": {"hold": ["502", "504"], "release": ["408", "412", "421", "425", "428", "429", "503"]}`: {
			"200": OutcomeCommit, "500": OutcomeCommit, "501": OutcomeCommit, "502": OutcomeHold, "503": OutcomeRelease, "503 r": OutcomeRelease, "504": OutcomeHold,
			"400": OutcomeReject, "408": OutcomeRelease, "412": OutcomeRelease, "421": OutcomeRelease, "425": OutcomeRelease, "428": OutcomeRelease, "429": OutcomeRelease,
		},
		`"outcomes": {"hold": ["502", "504+retry-after"], "release": []}`: {
			"502": OutcomeHold, "504": OutcomeCommit, "504 r": OutcomeHold, "429": OutcomeReject, "200": OutcomeCommit,
		},
	} {
		checkOutcomes(t, &mustParse(t, `{`+text+`}`).Route("POST", "/").Outcomes, want)
		if strings.HasPrefix(text, `"protocol"`) {
			over := mustParse(t, `{"outcomes": {"commit": ["2xx"], "hold": ["3xx", "500"]}, "match": [{`+text+`}]}`)
			checkOutcomes(t, &over.Route("POST", "/").Outcomes, want)
		}
	}
	// A rule's lists change those of the top level's protocol.
	c := mustParse(t, `{"protocol": "stripe-v2", "match": [{"outcomes": {"reject": ["4xx"]}}]}`)
	checkOutcomes(t, &c.Route("POST", "/").Outcomes, map[string]Outcome{"402": OutcomeReject, "400": OutcomeRelease, "500": OutcomeRelease})
}

func TestOutcomeHeaderDecides(t *testing.T) {
	with, without := mustParse(t, `{"outcome_header": "O"}`).Route("POST", "/"), mustParse(t, ``).Route("POST", "/")
	for said, want := range map[string]Outcome{
		"commit": OutcomeCommit, "reject": OutcomeReject, "release": OutcomeRelease, "hold": OutcomeHold, "": OutcomeCommit, "HOLD": OutcomeCommit, "x": OutcomeCommit,
	} {
		if got := with.Outcome(500, false, said); got != want {
			t.Errorf("%q: %d, want %d", said, got, want)
		}
		if got := without.Outcome(500, false, said); got != OutcomeCommit {
			t.Errorf("%q without a header: %d", said, got)
		}
	}
	if got := with.Outcome(101, false, "commit"); got != OutcomeNone {
		t.Errorf("101: %d", got)
	}
}
