package client

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
)

const claimedJob = `{"id":"i","function":"f","payload":[1, {"a":null}],"key":"k","state":"active","priority":-1,"attempt":1,"max_attempts":3,` +
	`"run_at":"2026-01-02T15:04:05.123456Z","created_at":"2026-01-02T15:04:05Z","started_at":"2026-01-02T15:04:06Z","traceparent":"00-1-2-01",` +
	`"lease":{"worker":"w","token":"t","expires_in_ms":30000}}`

var answers = []string{
	`{"jobs":[]}`,
	`{"jobs":[` + claimedJob + `,` + claimedJob + `]}`,
	`{"jobs":[{"dedup":{"key":"d","ttl_ms":1},"wal_locations":{"a":"0/1"}},null,{"id":"\u0061"}]}`,
	` { "jobs" : [ { "payload" : 1.5e3 , "attempt" : -0, "lease":{} } ] } `,
	`{"jobs":[{"payload":1.5e3,"attempt":-0,"lease":{}},{"payload": 1},{ "payload":"\u00e9\ud83d\ude00\ud83d" }]}`,
	`{"jobs":[{"payload":null,"id":null,"lease":null,"run_at":null,"attempt":null}]}`,
	`{"jobs":[{"ID":"i","Lease":{"Token":"t"},"new":1}]}`,
	"{\"jobs\":[{\"id\":\"\u00e9\"}]}",
	`{"jobs":[],"more":1}`,
	`{"jobs":null}`,
	`{}`,
	`{"results":[{"id":"a","state":"complete"},{"state":"failed","id":"b"},{},null]}`,
	`{"results":[{"id":"a","problem":{"code":"fenced","status":409,"detail":"d"}}]}`,
	`{"jobs":[{"attempt":01}]}`,
	`{"jobs":{}}`,
	`[]`,
	``,
	`{"jobs":[{"attempt":1.5}]}`,
	`{"jobs":[{"attempt":"1"}]}`,
	`{"jobs":[{"run_at":"today"}]}`,
	`{"jobs":[{"run_at":1}]}`,
	`{"jobs":[{"id":1}]}`,
	`{"jobs":[1]}`,
	`{"jobs":[{"lease":[]}]}`,
	`{"jobs":[{"lease":{"expires_in_ms":1e3}}]}`,
	`{"jobs":[{"attempt":99999999999999999999}]}`,
	`{"jobs":[{"payload":}]}`,
	`{"jobs":[{"payload":{"a" 1}}]}`,
	`{"jobs":[]}}`,
	`{"jobs":[]} {}`,
	`{"jobs":[{"id":"a`,
	`{"jobs":[{"payload":` + strings.Repeat("[", api.MaxJSONDepth) + strings.Repeat("]", api.MaxJSONDepth) + `}]}`,
	`{"jobs":[{"payload":` + strings.Repeat("[", maxAnswer),
}

// sameAnswer compares what the client reads with what encoding/json reads.
func sameAnswer(t *testing.T, b []byte) {
	t.Helper()
	type answer struct {
		Jobs    []Job `json:"jobs"`
		Results []struct {
			ID      string   `json:"id"`
			State   string   `json:"state"`
			Problem *problem `json:"problem"`
		} `json:"results"`
	}
	var got, want answer
	err, wantErr := decode(b, &got), json.Unmarshal(b, &want)
	if (err == nil) != (wantErr == nil) || err == nil && !reflect.DeepEqual(got, want) {
		t.Errorf("%.200q: %+v, %v, want %+v, %v", b, got, err, want, wantErr)
	}
}

// TestAnswersAreReadAsByTheStandardLibrary: the client's package is a faster one.
func TestAnswersAreReadAsByTheStandardLibrary(t *testing.T) {
	for _, b := range answers {
		sameAnswer(t, []byte(b))
	}
}

// FuzzAnswers: the client reads any answer without a panic.
func FuzzAnswers(f *testing.F) {
	for _, b := range answers {
		f.Add([]byte(b))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var out struct {
			Jobs []Job `json:"jobs"`
		}
		if decode(b, &out) == nil && !json.Valid(b) {
			t.Errorf("%q is no JSON", b)
		}
	})
}
