package request

import (
	"testing"

	"github.com/tidwall/gjson"
)

// Where no name is there twice, jsonAt finds what gjson finds.
func TestJSONAtIsGjson(t *testing.T) {
	for _, path := range []string{"a", "a.b", "0", "1.a", "a.0", "a.0.b", "a.01", "a.10", "a.-1", `a\.b`, `\a.b`, "é", "a.x.y", "99999999999"} {
		for _, body := range []string{
			`{"a":{"b":1.50,"x":null}}`, `{"a.b":"dots","a":[{"b":"\u00e9\n"},2]}`, `[{"a":1},{"a":"2"}]`, `{"0":"zero","99999999999":1}`, `{"a":[1,2,3]}`,
			`{"\u0061":{"b":true}}`, `{"é":1}`, `"text"`, `7`, ` { "b" : {"a":{"b":9}} , "a" : { "b" : "x" } } `, `[]`, `{}`, `{"a":{}}`, `{"":1}`,
		} {
			want := gjson.Get(body, path)
			got, twice := jsonAt([]byte(body), path)
			if got.Type != want.Type || got.Str != want.Str || got.Raw != want.Raw || twice {
				t.Errorf("%s in %s: %v %q %v, gjson finds %v %q", path, body, got.Type, got.Raw, twice, want.Type, want.Raw)
			}
		}
	}
}
