package server

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/logs/storelogs"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// newLogSite is a server with logs.
func newLogSite(t *testing.T) *site {
	t.Helper()
	return newLogSiteWith(t, httpd.Options{})
}

func newLogSiteWith(t *testing.T, o httpd.Options) *site {
	t.Helper()
	engine, err := storelogs.Open(t.Context(), mem.New(mem.Options{}), storelogs.Options{MaxLogs: 3, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	return newSite(t, siteOptions{server: Options{Options: o}, routes: LogRoutes(engine)})
}

// say is a call and its answer: the status, then the body or the code of the problem.
func (s *site) say(method, path, body string, header ...string) string {
	s.t.Helper()
	a := s.Do(method, path, "application/json", body, header...)
	var p struct{ Code, Detail string }
	if a.Status >= 400 {
		_ = json.Unmarshal([]byte(a.Body), &p)
		return fmt.Sprint(a.Status, " ", p.Code, ": ", p.Detail)
	}
	return fmt.Sprint(a.Status, " ", a.Body)
}

func (s *site) want(want, method, path, body string, header ...string) {
	s.t.Helper()
	if got := s.say(method, path, body, header...); got != want && !(strings.HasSuffix(want, "...") && strings.HasPrefix(got, strings.TrimSuffix(want, "..."))) {
		s.t.Errorf("%s %s %s\n got %s\nwant %s", method, path, body, got, want)
	}
}

func TestLogsOverHTTP(t *testing.T) {
	s := newLogSite(t)
	s.want("404 not-found: ...", "POST", "/v1/logs/events/entries", `{"payload":"YQ=="}`)
	s.want(`201 {"log":"events","identity":"ids","window_ms":300000,"max_keys":1000000,...`, "PUT", "/v1/logs/events", `{}`)
	s.want("200 ...", "PUT", "/v1/logs/events", `{}`)
	const entries = "/v1/logs/events/entries"
	s.want(`200 {"entries":[],"cursor":"0"}`, "GET", entries, "")
	s.want(`201 {"log":"events","segment":1,"entry":1,"id":"a"}`, "POST", entries, `{"payload":"YQ==","id":"a","properties":{"z":"1","k":"v"}}`)
	s.want(`200 {"log":"events","segment":1,"entry":1,"id":"a","duplicate":true}`, "POST", entries, `{"payload":"YQ==","id":"a"}`)
	s.want("422 payload-mismatch: ...", "POST", entries, `{"payload":"Yg==","id":"a"}`)
	s.want(`201 {"log":"events","segment":1,"entry":2,"id":"0cc175b9c0f1b6a831c399e269772661"}`, "POST", entries, `{"payload":"YQ==","derive":"md5"}`)
	s.want(`201 {"log":"events","segment":1,"entry":3,"id":""}`, "POST", entries, `{"payload":""}`)
	s.want(`201 {"log":"events","segment":1,"entry":4,"id":"key  1"}`, "POST", entries, `{"payload":"YQ=="}`, "idempotency-key", `"key  1"`)
	s.want(`200 {"log":"events","segment":1,"entry":4,"id":"key  1","duplicate":true}`, "POST", entries, `{"payload":"YQ=="}`, "idempotency-key", "key  1")
	s.want(`200 {"log":"events","segment":1,"entry":4,"id":"key  1","duplicate":true}`, "POST", entries, `{"payload":"YQ==","id":"key  1"}`, "idempotency-key", "key  1")
	s.want(`400 invalid-request: id: "a": must be that of the header idempotency-key, or absent...`, "POST", entries, `{"payload":"YQ==","id":"a"}`, "idempotency-key", "key  1")
	s.want(`200 {"results":[{"status":201,"log":"events","segment":1,"entry":5,"id":"b"},{"status":200,"log":"events","segment":1,"entry":1,"id":"a","duplicate":true},{"type":"urn:oncegate:problem:payload-mismatch",...`,
		"POST", entries, `{"entries":[{"payload":"","id":"b"},{"payload":"YQ==","id":"a"},{"payload":"Yg==","id":"a"},{"payload":"#"}]}`)
	s.want(`200 {"results":[{"type":"urn:oncegate:problem:not-written","title":"Not written","status":424,...`,
		"POST", entries, `{"atomic":true,"entries":[{"payload":"","id":"c"},{"payload":"#"}]}`)
	s.want(`200 {"entries":[{"segment":1,"entry":1,"id":"a","payload":"YQ==","properties":{"k":"v","z":"1"}},{"segment":1,"entry":2,"id":"0cc175b9c0f1b6a831c399e269772661","payload":"YQ==","properties":{}}],"cursor":"2"}`,
		"GET", entries+"?limit=2", "")
	s.want(`200 {"entries":[{"segment":1,"entry":5,"id":"b","payload":"","properties":{}}],"cursor":"5"}`, "GET", entries+"?after=4&wait_ms=30000", "")
	s.want(`200 {"entries":[],"cursor":"5"}`, "GET", entries+"?after=5&wait_ms=1", "")
	s.want(`200 {"entries":[{"segment":1,"entry":1,...`, "GET", entries+"?after=&limit=&wait_ms=", "") // as the call is written
	s.want(`200 {"entries":[{"segment":1,"entry":1,...`, "GET", entries+"?limit=10000", "")
	s.want(`200 {"segment":1,"entry":1,"id":"a","payload":"YQ==","properties":{"k":"v","z":"1"}}`, "GET", entries+"/by-id/a", "")
	s.want("404 not-found: ...", "GET", entries+"/by-id/c", "")

	const writers = "/v1/logs/events/writers"
	s.want(`201 {"writer":"w","epoch":1}`, "POST", writers, `{"writer":"w"}`)
	s.want(`201 {"log":"events","segment":1,"entry":6,"id":"d"}`, "POST", entries, `{"payload":"","id":"d","writer":"w","epoch":1}`)
	s.want(`201 {"writer":"w","epoch":2}`, "POST", writers, `{"writer":"w"}`)
	s.want("409 fenced: ...", "POST", entries, `{"payload":"","id":"e","writer":"w","epoch":1}`)

	s.want("201 ...", "PUT", "/v1/logs/seq", `{"identity":"structured","window_ms":60000}`)
	s.want("409 conflict: ...", "PUT", "/v1/logs/seq", `{"identity":"ids"}`)
	const first, third = "host:1:1:0011223344556677", "host:1:3:0011223344556677"
	s.want("201 ...", "POST", "/v1/logs/seq/entries", `{"payload":"","id":"`+first+`"}`)
	s.want("409 sequence-gap: ...", "POST", "/v1/logs/seq/entries", `{"payload":"","id":"`+third+`"}`)
	s.want("200 ...", "GET", "/v1/logs/seq/entries/by-id/"+url.PathEscape(first), "")

	s.want("201 ...", "POST", "/v1/logs/seq/entries", `{"payload":"","id":"host:2:1:n1"}`)
	s.want("409 sequence-gap: ...", "POST", "/v1/logs/seq/entries", `{"payload":"","id":"host:2:3:n1"}`)
	s.want(`400 invalid-request: id: "host": must be {client}:{sequence}:{nonce}...`, "POST", "/v1/logs/seq/entries", `{"payload":"","id":"host"}`)

	s.want("201 ...", "PUT", "/v1/logs/third", "")
	s.want("409 too-many-logs: ...", "PUT", "/v1/logs/fourth", "")
	s.want(`200 {"log":"third","deleted":true}`, "DELETE", "/v1/logs/third", "")
	s.want("404 not-found: ...", "GET", "/v1/logs/third", "")
	s.want(`200 {"logs":[{"log":"events",...`, "GET", "/v1/logs?limit=1", "")
	s.want(`200 {"logs":[{"log":"seq",...`, "GET", "/v1/logs?cursor=events", "")
}

// TestLogsHaveAdministrators: a writer's token makes logs, and neither empties nor deletes one.
func TestLogsHaveAdministrators(t *testing.T) {
	const writer, admin = "writers-token-of-20-bytes", "admins-token-of-20-bytes"
	s := newLogSiteWith(t, httpd.Options{Auth: tokens(t, writer, admin)})
	const l, made, bearer = "/v1/logs/l", `{"retain_ms":60000}`, "authorization"
	s.want("201 ...", "PUT", l, made, bearer, "Bearer "+writer)
	for _, same := range []string{made, "", "{}", `{"identity":"ids"}`} {
		s.want("200 ...", "PUT", l, same, bearer, "Bearer "+writer)
	}
	s.want("403 forbidden: ...", "PUT", l, `{"retain_ms":1000}`, bearer, "Bearer "+writer)
	s.want(`200 {"log":"l","identity":"ids","window_ms":300000,"max_keys":1000000,"max_bytes":134217728,"when_full":"evict","retain_ms":60000,...`, "GET", l, "", bearer, "Bearer "+writer)
	s.want(`201 {"writer":"pod/1","epoch":1}`, "POST", l+"/writers", `{"writer":"pod/1"}`, bearer, "Bearer "+writer)
	s.want(`200 {"writers":[{"writer":"pod/1","epoch":1}],"cursor":"pod/1"}`, "GET", l+"/writers?limit=1", "", bearer, "Bearer "+writer)
	s.want(`200 {"writers":[],"cursor":""}`, "GET", l+"/writers?limit=1&cursor=pod/1", "", bearer, "Bearer "+writer)
	s.want("403 forbidden: ...", "DELETE", l+"/writers/pod%2F1", "", bearer, "Bearer "+writer)
	s.want(`200 {"writer":"pod/1","deleted":true}`, "DELETE", l+"/writers/pod%2F1", "", bearer, "Bearer "+admin)
	s.want("404 not-found: the log has no writer...", "DELETE", l+"/writers/pod%2F1", "", bearer, "Bearer "+admin)
	s.want("403 forbidden: ...", "DELETE", l, "", bearer, "Bearer "+writer)
	for range 2 { // the second one changes nothing
		s.want("200 ...", "PUT", l, `{"retain_ms":1000}`, bearer, "Bearer "+admin)
	}
	s.want("201 ...", "PUT", "/v1/logs/other", made, bearer, "Bearer "+admin)
	s.want("200 ...", "DELETE", l, "", bearer, "Bearer "+admin)
	const by = ` by an administrator" via=api token=2 roles=admin log=l`
	s.wantAudited(`"writer of a log removed`+by+` writer=pod/1`, `"settings of a log changed`+by+` settings="{\"retain_ms\":1000}"`, `"log deleted`+by)
}

// TestBadLogCalls: each is refused by name, with its value and what is allowed.
func TestBadLogCalls(t *testing.T) {
	s := newLogSite(t)
	s.want("201 ...", "PUT", "/v1/logs/l", "")
	const entries = "/v1/logs/l/entries"
	for body, want := range map[string]string{
		``:                       "body",
		`[]`:                     "body",
		`{}`:                     "payload",
		`{"payload":null}`:       "payload",
		`{"payload":"a"}`:        "payload",
		`{"payload":5}`:          "payload",
		`{"payload":"","id":""}`: "id",
		`{"payload":"","id":"` + strings.Repeat("x", 256) + `"}`:                                   "id",
		"{\"payload\":\"\",\"id\":\"a\xff\"}":                                                      "id", // two such ids would read alike
		`{"payload":"","id":"a\ud800"}`:                                                            "id",
		`{"payload":"","properties":{"a":"\udc00"}}`:                                               "properties.a",
		`{"payload":"","properties":{"\udc00":"a"}}`:                                               "\uFFFD",
		`{"payload":"","derive":"sha1"}`:                                                           "derive",
		`{"payload":"","derive":"md5","id":"a"}`:                                                   "derive",
		`{"payload":"","epoch":1}`:                                                                 "epoch",
		`{"payload":"","writer":"w"}`:                                                              "epoch",
		`{"payload":"","writer":"w","epoch":-1}`:                                                   "epoch",
		`{"payload":"","properties":[]}`:                                                           "properties",
		`{"payload":"","properties":{"a":1}}`:                                                      "properties.a",
		`{"payload":"","properties":{"":"x"}}`:                                                     "properties",
		`{"payload":"","properties":{"a":"` + strings.Repeat("x", logs.MaxPropertiesBytes) + `"}}`: "properties",
		`{"payload":"","size":1}`:                                                                  "size",
		`{"payload":"","payload":""}`:                                                              "payload",
		`{"entries":[]}`:                                                                           "entries",
		`{"entries":{}}`:                                                                           "entries",
		`{"entries":[{}],"payload":""}`:                                                            "payload",
		`{"entries":[{}],"atomic":"yes"}`:                                                          "atomic",
	} {
		s.want("400 invalid-request: "+want+"...", "POST", entries, body)
	}
	for query, want := range map[string]string{"after=x": "after", "after=1": "after", "limit=0": "limit", "limit=10001": "limit", "wait_ms=60001": "wait_ms", "from=1": "query"} {
		s.want("400 invalid-request: "+want+"...", "GET", entries+"?"+query, "")
	}
	for body, want := range map[string]string{`{"identity":"x"}`: "identity", `{"window_ms":1}`: "window_ms", `{"max_keys":0}`: "max_keys", `{"when_full":"x"}`: "when_full", `{"retain_bytes":5}`: "retain_bytes", `{"name":"x"}`: "name", `{"other":null}`: "other"} {
		s.want("400 invalid-request: "+want+"...", "PUT", "/v1/logs/n", body)
	}
	for _, name := range []string{".hidden", "a%2Fb", "a%20b", strings.Repeat("n", 129)} {
		s.want("400 invalid-request: log...", "PUT", "/v1/logs/"+name, "")
	}
	s.want("400 invalid-request: writer...", "POST", "/v1/logs/l/writers", `{}`)
	big := strings.Repeat("AAAA", logs.MaxPayloadBytes/3+1)
	s.want("413 too-large: ...", "POST", entries, `{"payload":"`+big+`"}`)
	s.want("413 too-large: ...", "POST", entries, `{"entries":[`+strings.Repeat(`{"payload":""},`, logs.MaxBatchEntries)+`{"payload":""}]}`)
}

// TestEnginesWithoutLogs: they say so.
func TestEnginesWithoutLogs(t *testing.T) {
	s := newSite(t, siteOptions{routes: NoLogRoutes("--max-logs is 0")})
	s.want("501 logs-unsupported: this manager keeps no logs: --max-logs is 0", "PUT", "/v1/logs/l", "")
	s.want("501 logs-unsupported: ...", "GET", "/v1/logs/l/entries", "")
}

// TestReaderIsWokenByAnAppend, and not by the clock.
func TestReaderIsWokenByAnAppend(t *testing.T) {
	s := newLogSite(t)
	s.want("201 ...", "PUT", "/v1/logs/l", "")
	got := make(chan string, 1)
	go func() { got <- s.say("GET", "/v1/logs/l/entries?wait_ms=60000", "") }()
	s.Eventually("a reader is held", func() bool { _, held := s.load(); return held == 1 })
	s.want("201 ...", "POST", "/v1/logs/l/entries", `{"payload":"","id":"a"}`)
	select {
	case page := <-got:
		if page != `200 {"entries":[{"segment":1,"entry":1,"id":"a","payload":"","properties":{}}],"cursor":"1"}` {
			t.Errorf("the reader got %s", page)
		}
	case <-time.After(patience):
		t.Error("the reader is not woken")
	}
}

// FuzzParseAppend: strangers send these.
func FuzzParseAppend(f *testing.F) {
	for _, s := range []string{`{"payload":"YQ==","id":"a"}`, `{"entries":[{"payload":""}],"atomic":true}`, `{"entries":[1,"",null]}`, `{"payload":"","properties":{"a":"b"},"writer":"w","epoch":3,"derive":"md5"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parseAppend(b)
		if err == nil && (len(a.items) == 0 || len(a.items) > logs.MaxBatchEntries || !a.batch && a.items[0].Err != nil) {
			t.Errorf("%q is read as %d items", b, len(a.items))
		}
		_, _ = parseLogChange(b)
		_, _ = parseWriter(b)
	})
}
