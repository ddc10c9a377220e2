package server

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// Each line is a request and what it is answered, in order,
// on one ledger.
func TestCallsGetTheirDocumentedAnswers(t *testing.T) {
	const (
		reserve = "/v1/ledger/reserve"
		commit  = "/v1/ledger/commit"
		reject  = "/v1/ledger/reject"
		release = "/v1/ledger/release"
		renew   = "/v1/ledger/renew"
		unknown = "/v1/ledger/unknown"
		entries = "/v1/ledger/entries"
		result  = `"result":{"status":201,"headers":[["a","b"]],"body":"aGk="}`
	)
	steps := []struct {
		method, path, body string
		status             int
		want               string // a part of the body
		retry              string
	}{
		{"POST", reserve, `{"key":"k","token":"t1","fingerprint":"f"}`, 201, `{"state":"reserved","token":"t1","expires_in_ms":60000}`, ""},
		{"POST", reserve, `{"key":"k","token":"t2"}`, 202, `{"state":"pending","expires_in_ms":`, "1"},
		{"POST", reserve, `{"key":"k","token":"t2","fingerprint":"g"}`, 422, `"code":"fingerprint-mismatch"`, ""},
		{"POST", commit, `{"key":"k","token":"t2",` + result + `}`, 409, `"code":"fenced"`, ""},
		{"POST", commit, `{"key":"k","token":"t1",` + result + `}`, 200, `{"state":"committed"}`, ""},
		{"POST", commit, `{"key":"k","token":"t1",` + result + `}`, 200, `{"state":"committed"}`, ""},
		{"POST", reject, `{"key":"k","token":"t1",` + result + `}`, 409, `"code":"conflict"`, ""},
		{"POST", release, `{"key":"k","token":"t1"}`, 409, `"code":"conflict"`, ""},
		{"POST", release, `{"key":"k","token":"t2"}`, 409, `"code":"fenced"`, ""},
		{"POST", reserve, `{"key":"k","token":"t2"}`, 200, result, ""},
		{"POST", reserve, `{"key":"k","scope":"other","token":"t2"}`, 201, `"reserved"`, ""},
		{"POST", reject, `{"key":"k","scope":"other","token":"t2","result":{"status":400}}`, 200, `{"state":"rejected"}`, ""},
		{"POST", reserve, `{"key":"k","scope":"other","token":"t3"}`, 200, `"state":"rejected"`, ""},
		{"POST", reserve, `{"key":"r","token":"t1"}`, 201, `"reserved"`, ""},
		{"POST", release, `{"key":"r","token":"t1"}`, 200, `{"state":"released"}`, ""},
		{"POST", release, `{"key":"r","token":"t1"}`, 200, `{"state":"released"}`, ""},
		{"POST", reserve, `{"key":"a/b?c","scope":"x&y","token":"t1","pending_ttl_ms":5000}`, 201, `"expires_in_ms":5000`, ""},
		{"POST", reserve, `{"key":"u","token":"t1","fingerprint":"f"}`, 201, `"reserved"`, ""},
		{"POST", renew, `{"key":"u","token":"t1","pending_ttl_ms":3600000}`, 200, `{"state":"reserved","token":"t1","expires_in_ms":3600000}`, ""},
		{"POST", renew, `{"key":"u","token":"t1","pending_ttl_ms":1000,"fingerprint":"f"}`, 200, `{"state":"reserved","token":"t1","expires_in_ms":3`, ""},
		{"POST", renew, `{"key":"u","token":"t2"}`, 409, `"code":"fenced"`, ""},
		{"POST", renew, `{"key":"u","token":"t1","fingerprint":"g"}`, 422, `"code":"fingerprint-mismatch"`, ""},
		{"POST", renew, `{"key":"u","token":"t1","wait_ms":5}`, 400, `wait_ms: \"5\": this call does not take it`, ""},
		{"POST", renew, `{"key":"k","token":"t1"}`, 409, `"code":"conflict"`, ""},
		{"POST", unknown, `{"key":"u","token":"t2"}`, 409, `"code":"fenced"`, ""},
		{"POST", unknown, `{"key":"u","token":"t1","pending_ttl_ms":5}`, 400, `pending_ttl_ms: \"5\": this call does not take it`, ""},
		{"POST", unknown, `{"key":"u","token":"t1","unknown_ttl_ms":0}`, 400, `unknown_ttl_ms: \"0\": must be at least 1`, ""},
		{"POST", reserve, `{"key":"z","token":"t1","pending_ttl_ms":0}`, 400, `pending_ttl_ms: \"0\": must be a whole number from 1 to 31622400000`, ""},
		{"POST", renew, `{"key":"u","token":"t1","pending_ttl_ms":0}`, 400, `pending_ttl_ms: \"0\": must be a whole number from 1 to 31622400000`, ""},
		{"POST", commit, `{"key":"z","token":"t1","ttl_ms":0,` + result + `}`, 400, `ttl_ms: \"0\": must be a whole number from 1 to 31622400000`, ""},
		{"POST", entries + "/u/resolve", `{"as":"released","ttl_ms":0}`, 400, `ttl_ms: \"0\": must be a whole number from 1 to 31622400000`, ""},
		{"POST", unknown, `{"key":"u","token":"t1","result":{}}`, 400, `result: unknown field`, ""},
		{"POST", unknown, `{"key":"u","token":"t1","unknown_ttl_ms":7200000}`, 200, `{"state":"unknown","expires_in_ms":7200000}`, ""},
		{"POST", unknown, `{"key":"u","token":"t1"}`, 200, `{"state":"unknown","expires_in_ms":7`, ""},
		{"POST", reserve, `{"key":"u","token":"t2","wait_ms":1000}`, 409, `"code":"outcome-unknown"`, ""},
		{"POST", reserve, `{"key":"u","token":"t2","fingerprint":"g"}`, 422, `"code":"fingerprint-mismatch"`, ""},
		{"GET", entries + "?state=unknown", ``, 200, `{"entries":[{"key":"u","scope":"","state":"unknown","fingerprint":"f","age_ms":`, ""},
		{"POST", unknown, `{"key":"k","token":"t1"}`, 409, `"code":"conflict"`, ""},
		{"POST", commit, `{"key":"u","token":"t1",` + result + `}`, 200, `{"state":"committed"}`, ""},
		{"GET", entries + "/a%2Fb%3Fc?scope=x%26y", ``, 200, `{"key":"a/b?c","scope":"x&y","state":"pending","age_ms":`, ""},
		{"GET", entries + "/k", ``, 200, result, ""},
		{"GET", entries + "/k", ``, 200, `"fingerprint":"f"`, ""},
		{"GET", entries + "/nope", ``, 404, `"code":"not-found"`, ""},
		{"GET", entries + "/" + strings.Repeat("k", 256), ``, 400, `"code":"invalid-key"`, ""},
		{"GET", entries + "/k?scoop=x", ``, 400, `unknown parameter, allowed are: scope`, ""},
		{"GET", entries + "?state=committed", ``, 200, `"status":201,"body_bytes":2}],"cursor":""}`, ""},
		{"GET", entries + "?state=gone", ``, 400, `state: \"gone\": must be pending, committed, rejected or unknown`, ""},
		{"GET", entries + "?state=&limit=&cursor=", ``, 200, `"cursor":""}`, ""}, // as the call is written
		{"GET", entries + "?job_id=", ``, 404, `"code":"not-found"`, ""},
		{"GET", entries + "?key=a%2Fb%3Fc", ``, 200, `{"entries":[{"key":"a/b?c","scope":"x&y","state":"pending",`, ""},
		{"GET", entries + "?key=k&state=committed&limit=1", ``, 200, `{"entries":[{"key":"k","scope":"","state":"committed",`, ""},
		{"GET", entries + "?key=k&state=unknown", ``, 200, `{"entries":[],"cursor":""}`, ""},
		{"GET", entries + "?key=nope&limit=&cursor=", ``, 200, `{"entries":[],"cursor":""}`, ""},
		{"GET", entries + "?key=a+", ``, 400, `"code":"invalid-key"`, ""},
		{"GET", entries + "?job_id=x&key=k", ``, 400, `goes with no other parameter`, ""},
		{"GET", entries + "?limit=0", ``, 400, `limit: \"0\": must be a whole number from 1 to 1000`, ""},
		{"GET", entries + "?limit=x", ``, 400, `must be a whole number from 1 to 1000`, ""},
		{"GET", entries + "?limit=1&limit=2", ``, 400, `given twice`, ""},
		{"GET", entries + "?cursor=%zz", ``, 400, `malformed percent-encoding`, ""},
		{"GET", entries + "?cursor=!", ``, 400, `cursor: must be the cursor of the page before`, ""},
		{"GET", entries + "?job_id=x", ``, 404, `"code":"not-found"`, ""},
		{"GET", entries + "?job_id=x&limit=1", ``, 400, `goes with no other parameter`, ""},
		{"DELETE", entries + "/k", ``, 200, `{"key":"k","scope":"","state":"committed"`, ""},
		{"DELETE", entries + "/k", ``, 404, `"code":"not-found"`, ""},
		{"POST", reserve, `{"key":"k","token":"t9"}`, 201, `"reserved"`, ""},
		{"POST", commit, `{"key":"late","token":"t1",` + result + `,"ttl_ms":1000}`, 200, `{"state":"committed"}`, ""},
		{"GET", "/v1/ledger/stats", ``, 200, `"fenced_outcomes":2,`, ""},
		{"POST", reserve, `{"key":"k"}`, 400, `token: must be 1 to 64 bytes of visible ASCII`, ""},
		{"POST", reserve, `{"token":"t"}`, 400, `"code":"invalid-key"`, ""},
		{"POST", reserve, `{`, 400, `body: must be one valid JSON value`, ""},
		{"POST", reserve, ``, 400, `body: must be one valid JSON value`, ""},
		{"POST", reserve, `{"key":"k","tokken":"t"}`, 400, `tokken: unknown field`, ""},
		{"POST", commit, `{"key":"k","token":"t1"}`, 400, `result: is missing`, ""},
		{"POST", commit, `{"key":"k","token":"t1","result":{"status":20}}`, 400, `result.status`, ""},
		{"POST", commit, `{"key":"k","token":"t1","result":{"status":200,"body":"` + strings.Repeat("QUFB", 1000) + `"}}`, 413, `"code":"too-large"`, ""},
		{"POST", release, `[]`, 400, `body: must be a JSON object`, ""},
		{"GET", reserve, ``, 405, `method GET: must be POST`, ""},
		{"PUT", entries + "/k", ``, 405, `method PUT: must be GET or DELETE`, ""},
		{"GET", "/v1/ledger/entries/", ``, 404, `no such path`, ""},
		{"GET", "/v1/ledger/entries/a/b", ``, 404, `no such path`, ""},
		{"GET", "/", ``, 404, `no such path: /`, ""},
		{"GET", "/healthz", ``, 200, `{"status":"ok"}`, ""},
		{"GET", "/readyz", ``, 200, `{"status":"ready"}`, ""},
	}
	s := newSite(t, siteOptions{ledger: ledger.Options{MaxResultBytes: 2000}})
	for i, step := range steps {
		a := s.JSON(step.method, step.path, step.body)
		if a.Status != step.status || !strings.Contains(a.Body, step.want) || a.Header.Get("retry-after") != step.retry {
			t.Errorf("%d: %s %s %s\n got %d, retry-after %q, %s\nwant %d, retry-after %q, %s", i, step.method, step.path, step.body,
				a.Status, a.Header.Get("retry-after"), a.Body, step.status, step.retry, step.want)
		}
		if !json.Valid([]byte(a.Body)) {
			t.Errorf("%d: not JSON: %s", i, a.Body)
		}
		if a.Status == 405 && a.Header.Get("allow") == "" {
			t.Errorf("%d: 405 without allow", i)
		}
	}
	if strings.Contains(s.log.String(), "level=ERROR") {
		t.Errorf("errors were logged:\n%s", s.log)
	}
}

func TestRawFormCarriesPlainBodies(t *testing.T) {
	s := newSite(t, siteOptions{ledger: ledger.Options{MaxResultBytes: 2000}})
	target := func(token string) []byte {
		return (&api.ReserveRequest{Key: "k", Token: token, PendingTTL: time.Minute}).AppendRaw(nil)
	}
	status, reply := s.raw(api.PathReserve, target("t1"))
	if status != 201 || reply.State != api.StateReserved || reply.ExpiresIn != time.Minute {
		t.Fatalf("%d %+v", status, reply)
	}
	if status, reply = s.raw(api.PathReserve, target("t2")); status != 202 || reply.State != api.StatePending {
		t.Fatalf("%d %+v", status, reply)
	}
	result := api.Result{Status: 200, Headers: []api.Header{{Name: "x", Value: "\xff\xfe"}}, Body: []byte("\x00\x01\xff")}
	fin := api.FinishRequest{Key: "k", Token: "t1", Result: result}
	if status, reply = s.raw(api.PathCommit, fin.AppendRaw(nil)); status != 200 || reply.State != api.StateCommitted {
		t.Fatalf("%d %+v", status, reply)
	}
	status, reply = s.raw(api.PathReserve, target("t2"))
	if status != 200 || string(reply.Result.Body) != string(result.Body) || reply.Result.Headers[0] != result.Headers[0] {
		t.Fatalf("the replay differs from what was recorded: %d %+v", status, reply)
	}
	if status, _ = s.raw(api.PathReject, fin.AppendRaw(nil)); status != 409 {
		t.Errorf("reject after commit: %d", status)
	}
	if status, reply = s.raw(api.PathRelease, (&api.ReleaseRequest{Key: "other", Token: "t"}).AppendRaw(nil)); status != 200 || reply.State != api.StateReleased {
		t.Errorf("%d %+v", status, reply)
	}
	fin.Key, fin.Result.Body = "big", make([]byte, 2001)
	if status, _ = s.raw(api.PathCommit, fin.AppendRaw(nil)); status != 413 {
		t.Errorf("a result over the limit: %d", status)
	}
	bad := api.FinishRequest{Key: "k", Token: "t1", Result: api.Result{Status: 200, Headers: []api.Header{{Name: "a", Value: "x\ny"}}}}
	for _, path := range []string{api.PathReserve, api.PathCommit, api.PathReject, api.PathRelease, api.PathRenew, api.PathUnknown} {
		for _, body := range []string{"", "\x01", "\x02R", "garbage", string(bad.AppendRaw(nil))} {
			if a := s.Do("POST", path, api.ContentTypeRaw, body); a.Status != 400 {
				t.Errorf("%s %q: %d %s", path, body, a.Status, a.Body)
			}
		}
	}
}

func TestOtherContentTypesAreRefused(t *testing.T) {
	s := newSite(t, siteOptions{})
	for contentType, want := range map[string]int{
		"": 201, "application/json": 201, "Application/JSON; charset=utf-8": 201, "application/x-www-form-urlencoded": 415,
		"text/plain": 415, "application/jsonp": 415,
	} {
		body := `{"key":"k` + strconv.Itoa(len(contentType)) + `","token":"t"}`
		a := s.Do("POST", api.PathReserve, contentType, body)
		if a.Status != want {
			t.Errorf("%q: %d %s", contentType, a.Status, a.Body)
		}
		if strings.Contains(contentType, "form") && !strings.Contains(a.Body, "curl: -H 'content-type: application/json'") {
			t.Errorf("a form is refused without help: %s", a.Body)
		}
	}
	a := s.Do("POST", api.PathReserve, api.ContentTypeRaw+"; v=1", string((&api.ReserveRequest{Key: "r", Token: "t"}).AppendRaw(nil)))
	if a.Status != 201 {
		t.Errorf("raw with a parameter: %d", a.Status)
	}
}

func TestLongPollOutlivesTheWorkTimeout(t *testing.T) {
	s := newSite(t, siteOptions{server: Options{Options: httpd.Options{WorkTimeout: time.Second, WriteTimeout: time.Second}}})
	s.JSON("POST", api.PathReserve, `{"key":"k","token":"t1"}`)
	done := make(chan httpdtest.Answer, 1)
	go func() {
		a, err := s.Try(t.Context(), "POST", api.PathReserve, "", `{"key":"k","token":"t2","wait_ms":30000}`)
		if err != nil {
			t.Error(err)
		}
		done <- a
	}()
	s.Eventually("the second reserve waits", func() bool { return s.waiters() == 1 })
	s.Eventually("it is held, and not at work", func() bool { // the ledger counts it before the server does
		busy, held := s.load()
		return busy == 0 && held == 1
	})
	s.JSON("POST", api.PathCommit, `{"key":"k","token":"t1","result":{"status":200,"body":"aGk="}}`)
	if a := <-done; a.Status != 200 || !strings.Contains(a.Body, `"body":"aGk="`) {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	// The connection that waited serves further requests.
	for range 3 {
		if a := s.JSON("GET", "/healthz", ""); a.Status != 200 {
			t.Errorf("%d", a.Status)
		}
	}
}

func TestClientLeavesLongPoll(t *testing.T) {
	s := newSite(t, siteOptions{ledger: ledger.Options{MaxWait: time.Hour}})
	s.JSON("POST", api.PathReserve, `{"key":"k","token":"t1","pending_ttl_ms":3600000}`)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if _, err := s.Try(ctx, "POST", api.PathReserve, "", `{"key":"k","token":"t2","wait_ms":3600000}`); err == nil {
			t.Error("answered a client that left")
		}
	}()
	s.Eventually("the second reserve waits", func() bool { return s.waiters() == 1 })
	cancel()
	<-gone
	s.Eventually("the wait ends with its client", func() bool { return s.waiters() == 0 })
	s.Eventually("nothing is held", func() bool {
		busy, held := s.load()
		return busy == 0 && held == 0
	})
}

func TestDeletionIsAudited(t *testing.T) {
	s := newSite(t, siteOptions{})
	s.JSON("POST", api.PathReserve, `{"key":"k","scope":"s","token":"t1"}`)
	s.JSON("DELETE", "/v1/ledger/entries/none?scope=s", "")
	s.JSON("DELETE", "/v1/ledger/entries/k?scope=s", "")
	s.wantAudited(`"entry deleted by an administrator" via=api token=0 roles=admin scope=s key=k state=pending`)
}

func TestResolutionsAreAudited(t *testing.T) {
	s := newSite(t, siteOptions{})
	for _, key := range []string{"a", "b", "c", "d/e"} {
		s.JSON("POST", api.PathReserve, `{"key":"`+key+`","scope":"s","token":"t1"}`)
		s.JSON("POST", api.PathUnknown, `{"key":"`+key+`","scope":"s","token":"t1"}`)
	}
	s.JSON("POST", api.PathReserve, `{"key":"pending","scope":"s","token":"t1"}`)
	const entries, reserve = "/v1/ledger/entries/", `{"key":"%","scope":"s","token":"t2"}`
	for _, c := range []struct {
		key, body string
		status    int
		want      string
	}{
		{"a", ``, 400, `"detail":"body: must be one valid JSON value"`},
		{"a", `{}`, 400, `as: is missing: must be committed, rejected or released`},
		{"a", `{"as":"unknown"}`, 400, `as: \"unknown\": must be committed, rejected or released`},
		{"a", `{"as":"committed"}`, 400, `status: is missing: must be 200 to 599`},
		{"a", `{"as":"committed","status":99}`, 400, `status: \"99\": must be 200 to 599`},
		{"a", `{"as":"committed","status":199}`, 400, `status: \"199\": must be 200 to 599`},
		{"a", `{"as":"rejected","status":100,"body":""}`, 400, `status: \"100\": must be 200 to 599`},
		{"a", `{"as":"committed","status":200,"body":"?"}`, 400, `body: \"?\": must be base64`},
		{"a", `{"as":"committed","status":200,"headers":[["A","b"]],"body":""}`, 400, `headers: \"A\": header names must be lower-case`},
		{"a", `{"as":"committed","status":200,"headers":[]}`, 400, `headers: need a body, which may be empty`},
		{"a", `{"as":"committed","status":200,"result":{}}`, 400, `result: unknown field`},
		{"a", `{"as":"released","status":200}`, 400, `status: does not go with as released`},
		{"a", `{"as":"released","ttl_ms":5}`, 400, `ttl_ms: does not go with as released`},
		{"none", `{"as":"released"}`, 404, `"code":"not-found"`},
		{"pending", `{"as":"released"}`, 409, `the entry is pending: only one that is unknown can be resolved`},
		{"a", `{"as":"committed","status":201,"headers":[["x","y"]],"body":"aGk=","ttl_ms":5000}`, 200, `"state":"committed","age_ms":`},
		{"a", `{"as":"rejected","status":400}`, 409, `the entry is committed: only one that is unknown can be resolved`},
		{"b", `{"as":"rejected","status":402}`, 200, `"expires_in_ms":60000,"status":402,"body_bytes":0}`},
		{"c", `{"as":"committed","status":204,"body":""}`, 200, `"expires_in_ms":300000,"status":204,"body_bytes":0}`},
		{"d%2Fe", `{"as":"released"}`, 200, `"state":"released"`},
	} {
		if a := s.JSON("POST", entries+c.key+"/resolve?scope=s", c.body); a.Status != c.status || !strings.Contains(a.Body, c.want) {
			t.Errorf("%s %s: %d %s, want %d %s", c.key, c.body, a.Status, a.Body, c.status, c.want)
		}
	}
	for key, want := range map[string]string{
		"a":   `"result":{"status":201,"headers":[["x","y"]],"body":"aGk="}`,
		"b":   `"result":{"status":402,"headers":[],"body":"","body_omitted":true}`,
		"c":   `"result":{"status":204,"headers":[],"body":""}`,
		"d/e": `"state":"reserved"`,
	} {
		if a := s.JSON("POST", api.PathReserve, strings.Replace(reserve, "%", key, 1)); !strings.Contains(a.Body, want) {
			t.Errorf("%s: %d %s", key, a.Status, a.Body)
		}
	}
	const by, state = ` by an operator" via=api token=0 roles=admin scope=s key=`, ` state=unknown`
	s.wantAudited(`"entry resolved as committed`+by+"a"+state, `"entry resolved as rejected`+by+"b"+state,
		`"entry resolved as committed`+by+"c"+state, `"entry resolved as released`+by+"d/e"+state)
	if a := s.Do("POST", entries+"a/resolve?scope=s", api.ContentTypeRaw, "x"); a.Status != 415 {
		t.Errorf("the raw form: %d %s", a.Status, a.Body)
	}
}

func TestListingHasPages(t *testing.T) {
	s := newSite(t, siteOptions{})
	for i := range 25 {
		s.JSON("POST", api.PathReserve, `{"key":"k`+strconv.Itoa(i)+`","token":"t"}`)
	}
	seen := make(map[string]bool)
	for cursor, pages := "", 0; ; pages++ {
		a := s.JSON("GET", "/v1/ledger/entries?limit=10&cursor="+cursor, "")
		var page struct {
			Entries []struct{ Key string }
			Cursor  string
		}
		if err := json.Unmarshal([]byte(a.Body), &page); err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Entries {
			seen[e.Key] = true
		}
		if cursor = page.Cursor; cursor == "" || pages > 5 {
			break
		}
	}
	if len(seen) != 25 {
		t.Errorf("listed %d of 25", len(seen))
	}
}

// TestEntriesHaveAdministrators: a gate's token neither deletes nor resolves an entry, so it cannot
// take away the protection of a key.
func TestEntriesHaveAdministrators(t *testing.T) {
	const gate, admin = "gates-token-of-20-bytes", "admins-token-of-20-bytes"
	s := newSite(t, siteOptions{server: Options{Options: httpd.Options{Auth: tokens(t, gate, admin)}}})
	const bearer, entry, resolution = "authorization", "/v1/ledger/entries/k", `{"as":"rejected","status":500}`
	for _, call := range []string{"reserve", "unknown"} {
		s.want("20...", "POST", "/v1/ledger/"+call, `{"key":"k","token":"t"}`, bearer, "Bearer "+gate)
	}
	s.want("403 forbidden: ...", "POST", entry+"/resolve", resolution, bearer, "Bearer "+gate)
	s.want("403 forbidden: ...", "DELETE", entry, "", bearer, "Bearer "+gate)
	s.want(`200 {"key":"k","scope":"","state":"unknown",...`, "GET", entry, "", bearer, "Bearer "+gate)
	s.want("200 ...", "POST", entry+"/resolve", resolution, bearer, "Bearer "+admin)
	s.want("200 ...", "DELETE", entry, "", bearer, "Bearer "+admin)
}

// A proxy brings the retries of gRPC calls here, with the caller's credentials or none, and with a message that is
// dropped: it may be larger than what the manager takes.
func TestBlank(t *testing.T) {
	s := newSite(t, siteOptions{server: Options{Options: httpd.Options{Auth: tokens(t, "0123456789abcdef", "fedcba9876543210"), MaxBodyBytes: 1 << 10}}})
	for body, header := range map[string][]string{"": nil, "x": {"authorization", "Bearer someone's"}, strings.Repeat("x", 2<<10): {"origin", "http://elsewhere.test"}} {
		if a := s.Do("POST", api.PathAnswer, "application/octet-stream", body, header...); a.Status != 200 || a.Body != "-" || a.Header.Get(api.HeaderBlank) != "1" {
			t.Errorf("%d bytes: %d %q %v", len(body), a.Status, a.Body, a.Header)
		}
	}
}
