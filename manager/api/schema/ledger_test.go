package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
)

var sampleAnswer = Answer{
	Status:  201,
	Headers: []api.Header{{Name: "content-type", Value: "application/json"}, {Name: "location", Value: "/payments/7"}, {Name: "x-quote", Value: `a "b" \c`}},
	Body:    []byte("{\"id\":7}\x00\xff"),
}

func after(d time.Duration) *time.Duration { return &d }

func TestLedgerCallsInJSON(t *testing.T) {
	for _, c := range []struct {
		call any
		want string
	}{
		{&api.ReserveRequest{
			Key: "host1:1:2:a1b2c3d4e5f6a7b8", Scope: "s\"1\"", Fingerprint: "f", Token: "t", PendingTTL: time.Minute, Wait: 1500 * time.Millisecond,
		}, `{"key":"host1:1:2:a1b2c3d4e5f6a7b8","scope":"s\"1\"","token":"t","fingerprint":"f","pending_ttl_ms":60000,"wait_ms":1500}`},
		{&api.ReserveRequest{Key: "k", Token: "t"}, `{"key":"k","token":"t"}`},
		{&api.ReserveRequest{Key: "k", Token: "t", UnknownTTL: time.Second}, `{"key":"k","token":"t","unknown_ttl_ms":1000}`},
		{&api.ReserveRequest{Key: "k", Token: "t", UnknownTTL: api.NoUnknown}, `{"key":"k","token":"t","unknown_ttl_ms":0}`},
		{&api.FinishRequest{Key: "k", Scope: "s", Token: "t", Fingerprint: "f", TTL: 5 * time.Minute, Result: sampleAnswer}, `{"key":"k","scope":"s","token":"t","fingerprint":"f","ttl_ms":300000,"result":{"status":201,"headers":[["content-type","application/json"],["location","/payments/7"],["x-quote","a \"b\" \\c"]],"body":"eyJpZCI6N30A/w=="}}`},
		{&api.ReleaseRequest{Key: "k", Scope: "s", Token: "t"}, `{"key":"k","scope":"s","token":"t"}`},
		{&LedgerReply{State: api.StateReserved, Token: "t", ExpiresIn: after(time.Minute)}, `{"state":"reserved","token":"t","expires_in_ms":60000}`},
		{&LedgerReply{State: api.StatePending, ExpiresIn: after(time.Nanosecond)}, `{"state":"pending","expires_in_ms":1}`},
		{&LedgerReply{State: api.StateCommitted, ExpiresIn: after(time.Second), Result: &sampleAnswer}, `{"state":"committed","expires_in_ms":1000,"result":{"status":201,"headers":[["content-type","application/json"],["location","/payments/7"],["x-quote","a \"b\" \\c"]],"body":"eyJpZCI6N30A/w=="}}`},
		{&LedgerReply{State: api.StateRejected, ExpiresIn: after(0), Result: &Answer{Status: 400, BodyOmitted: true}}, `{"state":"rejected","expires_in_ms":0,"result":{"status":400,"headers":[],"body":"","body_omitted":true}}`},
		{&api.Problem{Status: 422, Code: api.CodeFingerprintMismatch, Title: "T", Detail: "a\n\"b\"\x01\xff"}, `{"type":"urn:oncegate:problem:fingerprint-mismatch","title":"T","status":422,"code":"fingerprint-mismatch","detail":"a\n\"b\"\u0001�"}`},
	} {
		if got := string(Append(nil, c.call)); got != c.want {
			t.Errorf("%+v: got\n%s\nwant\n%s", c.call, got, c.want)
		}
	}
}

// canon makes no difference between an empty body and none.
func canon(f api.FinishRequest) api.FinishRequest {
	if len(f.Result.Body) == 0 {
		f.Result.Body = nil
	}
	return f
}

// An error names the field, its value and what is allowed.
func TestRefusalsNameFieldAndAllowedValues(t *testing.T) {
	for _, c := range []struct{ form, body, want string }{
		{"reserve", ``, "key: must be 1 to 255 bytes of printable ASCII without a blank at either end"},
		{"reserve", `[]`, "body: must be a JSON object"},
		{"reserve", `{"key":"k"} x`, "body: must be one valid JSON value"},
		{"reserve", `{"key":"k","key":"l"}`, "key: given twice"},
		{"reserve", "{\"k\xff\":\"k\"}", "k\uFFFD: must have a name of Unicode text"},
		{"commit", `{"key":"k","token":"t","result":{"status":200,"status":201}}`, "result.status: given twice"},
		{"reserve", `{"kay":"k"}`, "kay: unknown field"},
		{"reserve", `{"key":7}`, `key: "7": must be a string`},
		{"reserve", `{"pending_ttl_ms":-1}`, `pending_ttl_ms: "-1": must be a whole number from 1 to 31622400000`},
		{"reserve", `{"pending_ttl_ms":1.5}`, `pending_ttl_ms: "1.5": must be a whole number from 1 to 31622400000`},
		{"reserve", `{"pending_ttl_ms":0}`, `pending_ttl_ms: "0": must be a whole number from 1 to 31622400000`},
		{"reserve", `{"wait_ms":"5"}`, `wait_ms: "\"5\"": must be a whole number from 0 to 31622400000`},
		{"reserve", `{"key":"k","token":"t","wait_ms":31622400001}`, `wait_ms: "31622400001": must be a whole number from 0 to 31622400000`},
		{"reserve", `{"wait_ms":9999999999999999999999}`, `wait_ms: "9999999999999999999999": must be a whole number from 0 to 31622400000`},
		{"reserve", `{"unknown_ttl_ms":-1}`, `unknown_ttl_ms: "-1": must be a whole number from 0 to 31622400000`},
		{"reserve", `{"key":` + strings.Repeat("[", 256) + strings.Repeat("]", 256) + `}`, "body: must be JSON nested at most 256 deep"},
		{"commit", `{"key":"k","token":"t"}`, `result.status: "0": must be 100 to 999`},
		{"commit", `{"result":[]}`, "result: must be a JSON object"},
		{"commit", `{"key":"k","token":"t","result":{"status":99}}`, `result.status: "99": must be 100 to 999`},
		{"commit", `{"result":{"status":200,"headers":{}}}`, `result.headers: "{}": must be an array of [name, value]`},
		{"commit", `{"result":{"status":200,"headers":[["a"]]}}`, `result.headers: "[\"a\"]": must be an array of [name, value]`},
		{"commit", `{"result":{"status":200,"headers":[["a","b","c"]]}}`, `result.headers: "[\"a\",\"b\",\"c\"]": must be an array of [name, value]`},
		{"commit", `{"result":{"status":200,"headers":[["a",1]]}}`, `result.headers: "1": must be a string`},
		{"commit", `{"result":{"headers":[["a","` + "\xab" + `"]]}}`, `result.headers: "\ufffd": must be Unicode text: UTF-8, without half a surrogate pair`},
		{"commit", `{"result":{"status":200,"body":"a"}}`, `result.body: "a": must be base64 with padding`},
		{"commit", `{"result":{"status":200,"body":1}}`, `result.body: "1": must be a string`},
		{"commit", `{"result":{"status":200,"body_omitted":1}}`, `result.body_omitted: "1": must be true or false`},
		{"commit", `{"result":{"status":200,"trailers":[]}}`, "result.trailers: unknown field"},
		{"release", `{"key":"k","result":{}}`, "result: unknown field"},
	} {
		var call interface{ Validate() error } = new(api.ReleaseRequest)
		switch c.form {
		case "reserve":
			call = new(api.ReserveRequest)
		case "commit":
			call = new(api.FinishRequest)
		}
		err := Parse([]byte(c.body), call)
		if err == nil {
			err = call.Validate()
		}
		if err == nil || err.Error() != c.want {
			t.Errorf("%s %s\n got %v\nwant %s", c.form, c.body, err, c.want)
		}
		var field *api.FieldError
		if !errors.As(err, &field) {
			t.Errorf("%s %s: %T", c.form, c.body, err)
			continue
		}
		if p := field.Problem(); p.Status != 400 || p.Detail != c.want {
			t.Errorf("problem %+v", p)
		}
	}
}

// What an escape can say without loss is taken, and nothing else.
func TestUnicodeInJSON(t *testing.T) {
	for raw, want := range map[string]string{
		`\ud83d\ude00`: "\U0001F600", `\uD83D\uDE00\ufffd`: "\U0001F600\uFFFD", `\\ud800\uFFFD`: `\ud800` + "\uFFFD", "\uFFFD": "\uFFFD", `\ufffd\\`: "\uFFFD\\", "": "",
		"a\xff": "", `a\ud800`: "", `a\\\uDC00b`: "", `\ufffd\ud83d\u0041`: "", `\ud83d`: "", `\ud83d\n`: "", "\uFFFD\xc3": "",
	} {
		s, ok := text(gjson.Parse(`"` + raw + `"`))
		if wanted := want != "" || raw == ""; ok != wanted || ok && s != want {
			t.Errorf("%q: %q, %v, want %q", raw, s, ok, want)
		}
	}
}

func TestProblemRoundTrip(t *testing.T) {
	in := api.Problem{Status: 409, Code: api.CodeFenced, Title: "Fenced", Detail: "a \"b\""}
	b := Append(nil, &in)
	var out api.Problem
	if err := Unmarshal(b, &out); err != nil || out != in {
		t.Errorf("%+v %v", out, err)
	}
	var any map[string]any
	if err := json.Unmarshal(b, &any); err != nil || any["type"] != "urn:oncegate:problem:fenced" {
		t.Errorf("%v %v", any, err)
	}
}

func TestMembersAreBounded(t *testing.T) {
	var b bytes.Buffer
	b.WriteString(`{"map":{"":""`)
	for i := range 100 {
		b.WriteString(`,"` + strings.Repeat("x", i+1) + `":""`)
	}
	b.WriteString(`}}`)
	if err := Parse(b.Bytes(), new(sample)); err == nil || !strings.Contains(err.Error(), "64 members") {
		t.Error(err)
	}
}

func FuzzLedgerJSON(f *testing.F) {
	finish := api.FinishRequest{Key: "k", Scope: "s", Token: "t", Result: sampleAnswer}
	f.Add(Append(nil, &finish))
	f.Add(Append(nil, &api.ReserveRequest{Key: "k", Token: "t", Wait: time.Second}))
	f.Add(Append(nil, &api.ReserveRequest{Key: "k", Token: "t", UnknownTTL: api.NoUnknown}))
	f.Add(Append(nil, &LedgerReply{State: api.StateCommitted, Result: &sampleAnswer}))
	f.Add([]byte(`{"key":"\ud800","token":"\u0000"}`))
	f.Add([]byte(`{"result":{"headers":[[[[[]]]]]}}`))
	f.Add([]byte(`{"wait_ms":1e3,"pending_ttl_ms":00}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r api.ReserveRequest
		if Parse(b, &r) == nil && r.Validate() == nil {
			var again api.ReserveRequest
			if err := Parse(Append(nil, &r), &again); err != nil || again != r {
				t.Fatalf("%+v became %+v: %v", r, again, err)
			}
		}
		var fin api.FinishRequest
		if Parse(b, &fin) == nil && fin.Validate() == nil {
			var again api.FinishRequest
			out := Append(nil, &fin)
			if !json.Valid(out) {
				t.Fatalf("not JSON: %s", out)
			}
			if err := Parse(out, &again); err != nil || !reflect.DeepEqual(canon(fin), canon(again)) {
				t.Fatalf("%+v became %+v: %v", fin, again, err)
			}
			if _, _, err := api.CheckRawResult(fin.Result.AppendRaw(nil)); err != nil {
				t.Fatalf("valid as JSON, not in the raw form: %v", err)
			}
		}
		_ = Parse(b, new(api.ReleaseRequest))
		_ = Unmarshal(b, new(LedgerReply))
		_ = Unmarshal(b, new(api.Problem))
		// What the check of depth lets through, the standard library accepts.
		if api.CheckJSON(b, api.MaxJSONDepth) == nil && !json.Valid(b) {
			t.Fatalf("accepted as JSON: %q", b)
		}
	})
}

func TestAFractionOfZerosIsPassedBy(t *testing.T) {
	for raw, want := range map[string]int64{"1": 1, "1.0": 1, "-1.000": -1, "0.0": 0, "10.00": 10} {
		if got, ok := whole(gjson.Parse(raw)); !ok || got != want {
			t.Errorf("%q: %d, %v", raw, got, ok)
		}
	}
	for _, raw := range []string{"1.5", "1.", "1.0e3", "", ".", `"1"`} {
		if got, ok := whole(gjson.Parse(raw)); ok {
			t.Errorf("%q: %d", raw, got)
		}
	}
}
