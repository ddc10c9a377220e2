package server

import (
	"strconv"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

func TestJobRequestsAreReadStrictly(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	j.call(202, "POST", "/v1/jobs", `{"function":"f","id":"a"}`)
	_, token, _ := j.claimOne()
	for _, c := range []struct{ method, path, body, field string }{
		{"POST", "/v1/jobs", `{"function":"f","nope":1}`, "nope"},
		{"POST", "/v1/jobs", `{"function":1}`, "function"},
		{"POST", "/v1/jobs", `{"function":"f","function":"g"}`, "function"},
		{"POST", "/v1/jobs", `{"function":null}`, "function"},
		{"POST", "/v1/jobs", `{}`, "function"},
		{"POST", "/v1/jobs", ``, "function"},
		{"POST", "/v1/jobs", `[]`, "body"},
		{"POST", "/v1/jobs", `{"function":"f"`, "body"},
		{"POST", "/v1/jobs", `{"function":"f","payload":` + nested(999) + `}`, "body"},
		{"POST", "/v1/jobs", `{"function":"f","payload":` + nested(65) + `}`, "payload"},
		{"POST", "/v1/jobs/a/finish", `{"lease_token":"` + token + `","status":"complete","result":` + nested(65) + `}`, "result"},
		{"POST", "/v1/jobs", `{"function":"f","priority":1.5}`, "priority"},
		{"POST", "/v1/jobs", `{"function":"f","priority":"1"}`, "priority"},
		{"POST", "/v1/jobs", `{"function":"f","priority":99999}`, "priority"},
		{"POST", "/v1/jobs", `{"function":"f","max_attempts":0}`, "max_attempts"},
		{"POST", "/v1/jobs", `{"function":"f","delay_ms":-1}`, "delay_ms"},
		{"POST", "/v1/jobs", `{"function":"f","delay_ms":9223372036854775807}`, "delay_ms"},
		{"POST", "/v1/jobs", `{"function":"f","delay_ms":"1"}`, "delay_ms"},
		{"POST", "/v1/jobs", `{"function":"f","run_at":"tomorrow"}`, "run_at"},
		{"POST", "/v1/jobs", `{"function":"f","run_at":7}`, "run_at"},
		{"POST", "/v1/jobs", `{"function":"f","run_at":"2026-01-02 15:04:05Z"}`, "run_at"},
		{"POST", "/v1/jobs", `{"function":"f","run_at":"2026-01-02T15:04:05+1:00"}`, "run_at"},
		{"POST", "/v1/jobs", `{"function":"f","run_at":"2026-01-02T15:04:00,5Z"}`, "run_at"},
		{"POST", "/v1/jobs", `{"function":"f","run_at":"2026-01-02T1:00:00Z"}`, "run_at"},
		{"POST", "/v1/jobs", `{"function":"f","run_at":"2026-01-01T00:00:00Z","delay_ms":1}`, "delay_ms"},
		{"POST", "/v1/jobs", `{"function":"f","on_duplicate":"drop","key":"k"}`, "on_duplicate"},
		{"POST", "/v1/jobs", `{"function":"f","wal_locations":[]}`, "wal_locations"},
		{"POST", "/v1/jobs", `{"function":"f","wal_locations":{"main":1}}`, "wal_locations.main"},
		{"POST", "/v1/jobs", `{"function":"f","wal_locations":{"main":"x"}}`, "wal_locations.main"},
		{"POST", "/v1/jobs", `{"function":"f","dedup":true}`, "dedup"},
		{"POST", "/v1/jobs", `{"function":"f","dedup":{"strategy":"x"}}`, "dedup.strategy"},
		{"POST", "/v1/jobs", `{"function":"f","dedup":{"nope":1}}`, "dedup.nope"},
		{"POST", "/v1/jobs", `{"function":"f","dedup":{"ttl_ms":0}}`, "dedup.ttl_ms"},
		{"POST", "/v1/jobs", `{"function":"f","dedup":{"if_deduplicated":"x"}}`, "dedup.if_deduplicated"},
		{"POST", "/v1/jobs/claim", `{}`, "worker"},
		{"POST", "/v1/jobs/claim", `{"worker":"w","functions":"f"}`, "functions"},
		{"POST", "/v1/jobs/claim", `{"worker":"w","functions":[1]}`, "functions"},
		{"POST", "/v1/jobs/claim", `{"worker":"w","functions":["` + strings.Repeat(`f","`, 101) + `f"]}`, "functions"},
		{"POST", "/v1/jobs/claim", `{"worker":"w","limit":0}`, "limit"},
		{"POST", "/v1/jobs/claim", `{"worker":"w","limit":1001}`, "limit"},
		{"POST", "/v1/jobs/claim", `{"worker":"w","lease_ms":0}`, "lease_ms"},
		{"POST", "/v1/jobs/claim", `{"worker":"w","wait_ms":300001}`, "wait_ms"},
		{"POST", "/v1/jobs/claim", `{"worker":"w","wait_ms":-5}`, "wait_ms"},
		{"POST", "/v1/jobs/claim", `{"worker":"w","wait":1}`, "wait"},
		{"POST", "/v1/jobs/a/heartbeat", `{}`, "lease_token"},
		{"POST", "/v1/jobs/a/heartbeat", `{"lease_token":"` + token + `","x":1}`, "x"},
		{"POST", "/v1/jobs/a/finish", `{"lease_token":"` + token + `"}`, "status"},
		{"POST", "/v1/jobs/a/finish", `{"lease_token":"` + token + `","status":"queued"}`, "status"},
		{"POST", "/v1/jobs/a/finish", `{"lease_token":"` + token + `","status":"complete","id":"a"}`, "id"},
		{"POST", "/v1/jobs/a/finish", `{"lease_token":"` + token + `","status":"complete","error":"` + strings.Repeat("e", jobs.MaxErrorBytes+1) + `"}`, "error"},
		{"POST", "/v1/jobs/a/retry", `{"lease_token":"` + token + `","delay_ms":1.5}`, "delay_ms"},
		{"POST", "/v1/jobs/a/retry", `{"nope":1}`, "nope"},
		{"POST", "/v1/jobs/a/retry", `{"lease_token":""}`, "lease_token"},
		{"POST", "/v1/jobs", `{"function":"f","id":""}`, "id"},
		{"POST", "/v1/jobs", `{"function":"f","key":""}`, "key"},
		{"POST", "/v1/jobs", `{"function":"f","dedup":{"key":""}}`, "dedup.key"},
		{"POST", "/v1/jobs/a/cancel", `{"nope":1}`, "nope"},
		{"POST", "/v1/jobs/finish", `{}`, "finishes"},
		{"POST", "/v1/jobs/finish", `{"finishes":{}}`, "finishes"},
		{"POST", "/v1/jobs/finish", `{"finishes":[1]}`, "finishes"},
		{"POST", "/v1/jobs/finish", `{"finishes":[{"nope":1}]}`, "nope"},
		{"GET", "/v1/jobs?limit=0", ``, "limit"},
		{"GET", "/v1/jobs?state=dead", ``, "state"},
		{"GET", "/v1/jobs?nope=1", ``, "query"},
		{"GET", "/v1/jobs?cursor=%21", ``, "cursor"},
		{"GET", "/v1/jobs?payloads=maybe", ``, "payloads"},
		{"GET", "/v1/jobs?function=a%2Fb", ``, "function"},
		{"GET", "/v1/jobs/a?wait_ms=x", ``, "wait_ms"},
		{"GET", "/v1/jobs/a?wait_ms=300001", ``, "wait_ms"},
		{"GET", "/v1/jobs/a%20b", ``, "id"},
		{"GET", "/v1/functions?limit=x", ``, "limit"},
		{"POST", "/v1/functions/a%2Fb/pause", ``, "function"},
		{"POST", "/v1/functions/f/pause", `{"nope":1}`, "nope"},
		{"GET", "/v1/functions/f/dead-letters?limit=-1", ``, "limit"},
		{"GET", "/v1/functions/a%2Fb/dead-letters", ``, "function"},
	} {
		status, code := 400, api.CodeInvalidRequest
		if strings.Contains(c.body, strings.Repeat("e", 99)) {
			status, code = 413, api.CodeTooLarge
		}
		detail := j.wantCode(status, code, c.method, c.path, c.body)
		if !strings.HasPrefix(detail, c.field+":") && !strings.HasPrefix(detail, "field "+c.field+":") {
			t.Errorf("%s %s %.100s: problem %q does not begin with %s", c.method, c.path, c.body, detail, c.field)
		}
	}
	for _, path := range []string{"/v1/jobs/nobody", "/v1/jobs/nobody?wait_ms=100"} {
		j.wantCode(404, api.CodeNotFound, "GET", path, "")
	}
	for _, path := range []string{"/v1/jobs/nobody/cancel", "/v1/jobs/nobody/retry"} {
		j.wantCode(404, api.CodeNotFound, "POST", path, "{}")
	}
	if a := j.Do("POST", "/v1/jobs", "text/plain", `{"function":"f"}`); a.Status != 415 {
		t.Errorf("text/plain: %+v", a)
	}
	if a := j.Do("POST", "/v1/jobs", api.ContentTypeRaw, `x`); a.Status != 415 {
		t.Errorf("raw: %+v", a)
	}
	if d := j.depth(); d != (jobs.Depth{Active: 1}) {
		t.Errorf("depth after all refusals: %+v", d)
	}
}

// nested is JSON of that depth.
func nested(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }

// What is allowed just so is taken.
func TestLimitsOfJobFieldsAreTaken(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	j.call(202, "POST", "/v1/jobs", `{"function":"f","payload":`+nested(64)+`}`)
	for i, at := range []string{"2026-01-02t15:04:05z", "2026-01-02T15:04:05.123456789+01:30", "2026-01-02T15:04:05Z"} {
		made := j.call(202, "POST", "/v1/jobs", `{"function":"f","id":"`+strconv.Itoa(i)+`","run_at":"`+at+`"}`)
		if made["id"] != strconv.Itoa(i) {
			t.Errorf("%s: %v", at, made)
		}
	}
}
