package client

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

const plainJob = `{"id":"i","function":"f","payload":[1, {"a":null}],"key":"k","state":"active","priority":-1,"attempt":1,"max_attempts":3,` +
	`"run_at":"2026-01-02T15:04:05.123456Z","created_at":"2026-01-02T15:04:05Z","started_at":"2026-01-02T15:04:06Z","traceparent":"00-1-2-01",` +
	`"lease":{"worker":"w","token":"t","expires_in_ms":30000}}`

// claims are answers, and whether readPlainClaim reads them.
var claims = map[string]bool{
	`{"jobs":[]}`: true,
	`{"jobs":[` + plainJob + `,` + plainJob + `]}`:                                                 true,
	`{"jobs":[{"dedup":{"key":"d","ttl_ms":1},"wal_locations":{"a":"0/1"}},null,{"id":"\u0061"}]}`: true,
	` { "jobs" : [ { "payload" : 1.5e3 , "attempt" : -0, "lease":{} } ] } `:                        false,
	`{"jobs":[{"payload":1.5e3,"attempt":-0,"lease":{}},{"payload": 1},{ "payload":1}]}`:           true,
	`{"jobs":[{"attempt":01}]}`: false,
	`{"jobs":[{"payload":null,"id":null,"lease":null,"run_at":null,"attempt":null}]}`: true,
	`{"jobs":[{"ID":"i","Lease":{"Token":"t"},"new":1}]}`:                             true,
	`{"jobs":[{"id":"a","id":"b","lease":{"token":"t"},"lease":{"worker":"w"}}]}`:     true,
	"{\"jobs\":[{\"id\":\"\xff\",\"key\":\"\u00e9\"}]}":                               true,
	`{"jobs":[],"more":1}`:                  false,
	`{"Jobs":[]}`:                           false,
	`{"jobs":[],"jobs":[` + plainJob + `]}`: false,
	`{"jobs":null}`:                         false,
	`{"jobs":{}}`:                           false,
	`{}`:                                    false,
	`[]`:                                    false,
	``:                                      false,
	`{"jobs":[{"attempt":1.5}]}`:            false,
	`{"jobs":[{"attempt":"1"}]}`:            false,
	`{"jobs":[{"run_at":"today"}]}`:         false,
	`{"jobs":[{"run_at":1}]}`:               false,
	`{"jobs":[{"id":1}]}`:                   false,
	`{"jobs":[1]}`:                          false,
	`{"jobs":[{"lease":[]}]}`:               false,
	`{"jobs":[{"lease":{"expires_in_ms":1e3}}]}`:                                             false,
	`{"jobs":[{"attempt":99999999999999999999}]}`:                                            false,
	`{"jobs":[` + strings.Repeat("[", 1<<20):                                                 false,
	`{"jobs":[{"payload":` + strings.Repeat("[", 66) + "1" + strings.Repeat("]", 66) + `}]}`: false,
}

// finishes are answers, and whether readPlainFinished reads them.
var finishes = map[string]bool{
	`{"results":[]}`: true,
	`{"results":[{"id":"a","state":"complete"},{"state":"failed","id":"b"},{}]}`: true,
	`{"results":[{"id":"a","problem":{"code":"fenced"}}]}`:                       false,
	`{"results":[{"id":"a","state":null}]}`:                                      false,
	`{"results":[null]}`:                                                         false,
	`{"results":[],"more":1}`:                                                    false,
	`{"results":null}`:                                                           false,
	`{"results":[{"id":"a"]}`:                                                    false,
	`{"results":[{"id":"a",}]}`:                                                  false,
	`{"results":[{"id":"a"},]}`:                                                  false,
	`{"results":[{"id":"a"}]} `:                                                  false,
	`{"results":[{"id":"a`:                                                       false,
	``:                                                                           false,
}

// sameAsJSON compares plain, which read b, with encoding/json.
func sameAsJSON[T any](t *testing.T, b []byte, name string, read func([]byte) ([]T, bool)) (plain bool) {
	t.Helper()
	got, plain := read(b)
	if !plain {
		return false
	}
	var want map[string][]T
	if err := json.Unmarshal(b, &want); err != nil {
		t.Errorf("%q: encoding/json says: %v", b, err)
	} else if !reflect.DeepEqual(map[string][]T{name: got}, want) {
		t.Errorf("%q: %+v, want %+v", b, got, want)
	}
	return true
}

func TestPlainIsReadAsJSON(t *testing.T) {
	for b, want := range claims {
		if got := sameAsJSON(t, []byte(b), "jobs", readPlainClaim); got != want {
			t.Errorf("%.200s: plain: %t, want %t", b, got, want)
		}
	}
	for b, want := range finishes {
		if got := sameAsJSON(t, []byte(b), "results", readPlainFinished); got != want {
			t.Errorf("%.200s: plain: %t, want %t", b, got, want)
		}
	}
}

// TestOtherAnswersAreReadToo: by encoding/json.
func TestOtherAnswersAreReadToo(t *testing.T) {
	if jobs, err := readClaim([]byte(`{"Jobs":[{"id":"i"}],"more":1}`)); err != nil || len(jobs) != 1 || jobs[0].ID != "i" {
		t.Errorf("%+v, %v", jobs, err)
	}
	if _, err := readClaim([]byte(`{"jobs":[1]}`)); err == nil {
		t.Error("a number was read as a job")
	}
	results, err := readFinished([]byte(`{"results":[{"id":"a","problem":{"code":"fenced"}}, null]}`))
	if err != nil || len(results) != 2 || results[0].Problem == nil || results[0].Problem.Code != "fenced" {
		t.Errorf("%+v, %v", results, err)
	}
	if _, err := readFinished([]byte(`{"results":[1]}`)); err == nil {
		t.Error("a number was read as an answer")
	}
}

func FuzzPlain(f *testing.F) {
	for _, all := range []map[string]bool{claims, finishes} {
		for b := range all {
			f.Add([]byte(b))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		sameAsJSON(t, b, "jobs", readPlainClaim)
		sameAsJSON(t, b, "results", readPlainFinished)
	})
}

func BenchmarkReadClaim(b *testing.B) {
	job := `{"id":"01JDZ0V6X1MZ8Q4T9Y2B7C5D3E","function":"noop","payload":"` + strings.Repeat("p", 256) + `","key":"run-1764079231-12345","state":"active",` +
		`"priority":0,"attempt":1,"max_attempts":25,"run_at":"2026-11-25T13:59:01.123456Z","created_at":"2026-11-25T13:59:01.123456Z",` +
		`"started_at":"2026-11-25T13:59:02.123456Z","lease":{"worker":"host:12345:0a1b2c3d","token":"0123456789abcdef0123456789abcdef","expires_in_ms":30000}}`
	answer := []byte(`{"jobs":[` + strings.Repeat(job+",", 63) + job + `]}`)
	for b.Loop() {
		if jobs, err := readClaim(answer); err != nil || len(jobs) != 64 {
			b.Fatal(err)
		}
	}
}
