package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// latin1 is a JSON value in ISO 8859-1.
const latin1 = "{\"to\":\"M\xfcller\"}"

// An answer with a payload that is not UTF-8 is no JSON, and a worker could not read any job of its claim.
func TestJobsAreUTF8(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	refused := func(field, path, body string, header ...string) {
		t.Helper()
		d := j.wantCode(400, api.CodeInvalidRequest, "POST", path, body, header...)
		if !strings.HasPrefix(d, "field "+field+":") || !strings.Contains(d, `M\xfcller`) || !strings.Contains(d, "UTF-8") {
			t.Errorf("%s: problem %q, want one about %s", path, d, field)
		}
	}
	refused("payload", "/v1/jobs", `{"function":"f","payload":`+latin1+`}`)
	refused("payload", "/v1/jobs", `{"function":"f","payload":`+latin1+`}`, "idempotency-key", "k")
	got := j.submitBatch(`{"items":[{"function":"f","id":"a","payload":{"to":"Müller"}},{"function":"f","payload":` + latin1 + `}]}`)
	if statuses(got) != "202, 400 invalid-request" {
		t.Errorf("batch: %v", got)
	}
	_, token, _ := j.claimOne()
	lease := `{"lease_token":"` + token + `",`
	refused("result", "/v1/jobs/a/finish", lease+`"status":"complete","result":`+latin1+`}`)
	refused("error", "/v1/jobs/a/finish", lease+`"status":"failed","error":"M`+"\xfc"+`ller"}`)
	refused("error", "/v1/jobs/a/retry", lease+`"error":"M`+"\xfc"+`ller"}`)
	many := j.call(200, "POST", "/v1/jobs/finish", `{"finishes":[{"id":"a","lease_token":"`+token+`","status":"complete","result":`+latin1+`}]}`)
	if p := fmt.Sprint(many); !strings.Contains(p, "field result:") || !strings.Contains(p, "code:invalid-request") {
		t.Errorf("finish of many: %s", p)
	}
	if d := j.depth(); d != (jobs.Depth{Active: 1}) {
		t.Errorf("depth after all refusals: %+v", d)
	}
	// Half a surrogate pair is JSON, and Python makes it of a name of a file that it cannot decode.
	j.call(200, "POST", "/v1/jobs/a/finish", lease+`"status":"failed","error":"\udcfc"}`)
}

// JSON is UTF-8 (RFC 8259), whatever a client says.
func TestOtherCharsetsAreRefused(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	n := 0
	for contentType, want := range map[string]int{
		"application/json; charset=iso-8859-1": 415, "application/json;charset=\"Latin1\"": 415, "Application/JSON; v=1; Charset=UTF-16": 415, "application/json; charset=": 415,
		"application/json; charset=utf-8": 202, "application/json;charset=\"UTF-8\"": 202, "application/json; charset=utf8": 202, "application/json; v=charset": 202, "application/json;": 202,
	} {
		a := j.Do("POST", "/v1/jobs", contentType, `{"function":"f"}`)
		if a.Status != want || want == 415 && (!strings.Contains(a.Body, "content-type") || !strings.Contains(a.Body, "charset") || !strings.Contains(a.Body, "utf-8")) {
			t.Errorf("%s: %d %s", contentType, a.Status, a.Body)
		}
		n++
		key := fmt.Sprint("k", n)
		if a := j.Do("POST", api.PathReserve, contentType, `{"key":"`+key+`","token":"t"}`); (a.Status == 415) != (want == 415) {
			t.Errorf("reserve with %s: %d %s", contentType, a.Status, a.Body)
		}
	}
	if a := j.Do("POST", api.PathReserve, api.ContentTypeRaw+"; charset=iso-8859-1", "x"); a.Status == 415 {
		t.Errorf("the raw form has no charset: %d %s", a.Status, a.Body)
	}
}

// Bytes that are in a store already are answered as JSON.
func TestStoredBytesThatAreNotUTF8AreAnsweredAsJSON(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	large := strings.Repeat("x", 1000)
	j.call(202, "POST", "/v1/jobs", `{"function":"f","id":"a","payload":{"to":"M?ller"}}`)
	j.call(202, "POST", "/v1/jobs", `{"function":"f","id":"b","payload":{"to":"M?ller","x":"`+large+`"}}`)
	spoil := func() {
		t.Helper()
		err := j.store.Update(t.Context(), func(tx store.Tx) error {
			for _, id := range []store.ID{{Collection: "jobs", Key: "a"}, {Collection: "jobs", Key: "b"}, {Collection: "job_blobs", Key: "b/p"}} {
				b, err := tx.Get(id.Collection, id.Key)
				if err != nil {
					return err
				}
				b = bytes.ReplaceAll(b, []byte("M?ller"), []byte("M\xfcller"))
				r, err := jobs.ReadRecord(id.Collection, id.Key, b)
				if err != nil {
					return err
				}
				if err := tx.Put(id.Collection, id.Key, b, r.Entries...); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	shows := func(path string, want int) {
		t.Helper()
		a := j.Do("GET", path, "", "")
		if n := strings.Count(a.Body, "M\uFFFDller"); a.Status != 200 || !isJSON([]byte(a.Body)) || n != want {
			t.Errorf("%s: %d %q, with %d texts instead of %d", path, a.Status, a.Body, n, want)
		}
	}
	spoil()
	shows("/v1/jobs?payloads=true", 2)
	shows("/v1/jobs/a", 1)
	a := j.Do("POST", "/v1/jobs/claim", api.ContentTypeJSON, `{"worker":"w","limit":2}`)
	var got struct {
		Jobs []struct {
			ID    string
			Lease struct{ Token string }
		}
	}
	if err := json.Unmarshal([]byte(a.Body), &got); err != nil || len(got.Jobs) != 2 || !isJSON([]byte(a.Body)) {
		t.Fatalf("claim: %v, %q", err, a.Body)
	}
	for _, job := range got.Jobs {
		j.call(200, "POST", "/v1/jobs/"+job.ID+"/finish", `{"lease_token":"`+job.Lease.Token+`","status":"failed","result":"M?ller","error":"M?ller"}`)
	}
	spoil()
	shows("/v1/functions/f/dead-letters", 2*5) // payload, result, error, errors, reason
}

// isJSON: json.Valid takes bytes that are not UTF-8.
func isJSON(b []byte) bool { return json.Valid(b) && utf8.Valid(b) }

// FuzzJobRequests: whatever a stranger sends, the answer is a proper one and never an internal error. It is JSON, and so
// are later answers about what was taken.
func FuzzJobRequests(f *testing.F) {
	for _, s := range []struct{ path, query, key, contentType, body string }{
		{path: "/v1/jobs", key: "k", body: `{"function":"f","payload":{},"dedup":{"strategy":"until_executed"},"wal_locations":{"main":"0/1"}}`},
		{path: "/v1/jobs", key: `"k"`, body: `{"function":"f","key":"k","on_duplicate":"return_existing","run_at":"2026-01-02T15:04:05Z"}`},
		{path: "/v1/jobs", key: "k", body: `{"function":"f","payload":` + latin1 + `}`},
		{path: "/v1/jobs", key: "\xfc", body: `{"function":"f","wal_locations":{"` + "\xfc" + `":"` + "\xfc" + `"},"dedup":{"key":"` + "\xfc" + `"}}`},
		{path: "/v1/jobs/batch", contentType: "application/json; charset=latin1", body: `{"items":[{"function":"f","payload":` + latin1 + `,"idempotency_key":"k"}]}`},
		{path: "/v1/jobs/claim", body: `{"worker":"w","functions":["f"],"limit":3,"lease_ms":1000}`},
		{path: "/v1/jobs/claim", body: "{\"worker\":\"\xfc\",\"functions\":[\"\xfc\"]}"},
		{path: "/v1/jobs/a/finish", body: `{"lease_token":"TOKEN","status":"failed","result":` + latin1 + `,"error":"` + "\xfc" + `"}`},
		{path: "/v1/jobs/finish", body: `{"finishes":[{"id":"a","lease_token":"TOKEN","status":"complete","result":` + latin1 + `}]}`},
		{path: "/v1/jobs/a/retry", body: `{"lease_token":"TOKEN","error":"` + "\xfc" + `"}`},
		{path: "/v1/jobs/a/retry", body: `{"delay_ms":5}`},
		{path: "/v1/functions/\xfc/pause", contentType: "\xfc", body: "{\"\xfc\":1}"},
		{path: "/v1/functions/f/pause"},
		{path: "/v1/jobs", query: "function=%fc&cursor=\xfc&\xfc=1"},
		{path: "/v1/jobs/%fc", query: "wait_ms=%fc"},
	} {
		f.Add(s.path, s.query, s.key, s.contentType, []byte(s.body), s.query == "")
	}
	f.Fuzz(func(t *testing.T, path, query, key, contentType string, body []byte, post bool) {
		st := mem.New(mem.Options{})
		l, err := ledger.New(st, ledger.Options{MaxWait: -1})
		if err != nil {
			t.Fatal(err)
		}
		q, err := jobs.New(st, jobs.Options{})
		if err != nil {
			t.Fatal(err)
		}
		q.Drain() // nothing waits
		defer q.Close()
		s, err := New(Options{Options: httpd.Options{Version: "v", Logger: slog.New(slog.DiscardHandler)}}, JobRoutes(l, q))
		if err != nil {
			t.Fatal(err)
		}
		do := func(d *httpd.Direct) {
			var w httpd.Response
			s.Do(t.Context(), d, &w)
			if w.Status < 200 || w.Status >= 600 || w.Status == 500 || !isJSON(w.Body) {
				t.Fatalf("%s %s?%s %q: %d %q", d.Method, d.Path, d.Query, d.Body, w.Status, w.Body)
			}
		}
		if _, err := q.Enqueue(t.Context(), jobs.Submission{ID: "a", Function: "f"}); err != nil {
			t.Fatal(err)
		}
		got, err := q.Claim(t.Context(), jobs.ClaimRequest{Worker: "w"})
		if err != nil {
			t.Fatal(err)
		}
		if path == "" || path[0] != '/' {
			path = "/" + path
		}
		d := contentOf(contentType, httpd.Direct{Method: "GET", Path: path, Query: query, Body: bytes.ReplaceAll(body, []byte("TOKEN"), []byte(got[0].Lease.Token))})
		if post {
			d.Method = "POST"
		}
		if key != "" {
			d.Header.Set(api.HeaderIdempotencyKey, key)
		}
		do(d)
		do(d)
		for _, path := range []string{"/v1/jobs", "/v1/jobs/a", "/v1/functions", "/v1/functions/f/dead-letters"} {
			d := httpd.Direct{Method: "GET", Path: path}
			if path == "/v1/jobs" {
				d.Query = "payloads=true"
			}
			do(&d)
		}
		do(&httpd.Direct{Method: "POST", Path: "/v1/jobs/claim", Body: []byte(`{"worker":"w","limit":100}`)})
	})
}
