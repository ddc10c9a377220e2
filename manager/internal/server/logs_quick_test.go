package server

import (
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/oncegate/oncegate/manager/internal/logs"
)

// FuzzQuickAppend: what is read in one pass is what the reader of any body reads.
func FuzzQuickAppend(f *testing.F) {
	for _, body := range []string{
		`{"id":"a","payload":"eA=="}`, `{"payload":""}`, `{"entries":[{"payload":"eHh4"},{"id":"é","payload":"eA==","writer":"w","epoch":7}]}`,
	} {
		if _, ok := quickAppend([]byte(body)); !ok {
			f.Errorf("it does not read %s", body)
		}
		f.Add([]byte(body))
	}
	for _, body := range []string{
		``, `{}`, `{"entries":[]}`, `{"entries":[{}]}`, `{"id":"a","payload":"eA==","id":"b"}`, `{"id":"a\n","payload":"eA=="}`, `{"id":"","payload":"eA=="}`,
		"{\"id\":\"a\x01\",\"payload\":\"eA==\"}", "{\"payload\":\"eA\n==\"}", "{\"payload\":\"eHh4\n\n\n\n\"}", `{"payload":"eA="}`, `{"payload":"eB=="}`, `{"payload":"="}`, `{"payload":"eA==eA=="}`,
		`{"payload":"eHh4","epoch":01}`, `{"payload":"eHh4","epoch":0}`, `{"payload":"eHh4","epoch":1.0}`, `{"payload":"eHh4","epoch":9223372036854775808}`, `{"payload":"eHh4","writer":"a b"}`,
		`{"payload":"eHh4","writer":"` + strings.Repeat("w", 300) + `"}`, `{"payload":"eHh4"},`, `{"entries":[{"payload":"eHh4"}],"atomic":true}`, `{"entries":[{"payload":"eHh4"},]}`,
		`{"entries":[` + strings.Repeat(`{"payload":"eHh4"},`, logs.MaxBatchEntries) + `{"payload":"eHh4"}]}`, `{"payload":null}`, `{"payload":"eHh4","properties":{}}`, "{\"id\":\"\xff\",\"payload\":\"\"}",
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		quick, ok := quickAppend(body)
		if !ok {
			return
		}
		if any, err := parseAnyAppend(body); err != nil || !reflect.DeepEqual(any, quick) {
			t.Errorf("%q (valid UTF-8: %v) is read as %+v, and as %+v, %v", body, utf8.Valid(body), quick, any, err)
		}
	})
}
