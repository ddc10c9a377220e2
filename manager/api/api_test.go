package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, append(got, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.TrimSuffix(string(want), "\n"); want != string(got) {
		t.Errorf("%s: got\n%s\nwant\n%s", file, got, want)
	}
}

var sampleResult = Result{
	Status:  201,
	Headers: []Header{{"content-type", "application/json"}, {"location", "/payments/7"}, {"x-quote", `a "b" \c`}},
	Body:    []byte("{\"id\":7}\x00\xff"),
}

func TestGoldenJSON(t *testing.T) {
	reserve := ReserveRequest{
		Key: "host1:1:2:a1b2c3d4e5f6a7b8", Scope: "s\"1\"", Fingerprint: "f", Token: "t", PendingTTL: time.Minute, Wait: 1500 * time.Millisecond,
	}
	golden(t, "reserve.json", reserve.AppendJSON(nil))
	golden(t, "reserve-minimal.json", (&ReserveRequest{Key: "k", Token: "t"}).AppendJSON(nil))
	finish := FinishRequest{Key: "k", Scope: "s", Token: "t", Fingerprint: "f", TTL: 5 * time.Minute, Result: sampleResult}
	golden(t, "commit.json", finish.AppendJSON(nil))
	golden(t, "release.json", (&ReleaseRequest{Key: "k", Scope: "s", Token: "t"}).AppendJSON(nil))
	golden(t, "reply-reserved.json", (&ReserveReply{State: StateReserved, ExpiresIn: time.Minute}).AppendJSON(nil, "t"))
	golden(t, "reply-pending.json", (&ReserveReply{State: StatePending, ExpiresIn: time.Nanosecond}).AppendJSON(nil, "t"))
	golden(t, "reply-committed.json", (&ReserveReply{State: StateCommitted, ExpiresIn: time.Second, Result: sampleResult}).AppendJSON(nil, "t"))
	golden(t, "reserve-unknown.json", (&ReserveRequest{Key: "k", Token: "t", UnknownTTL: time.Second}).AppendJSON(nil))
	golden(t, "reserve-no-unknown.json", (&ReserveRequest{Key: "k", Token: "t", UnknownTTL: NoUnknown}).AppendJSON(nil))
	golden(t, "reply-omitted.json", (&ReserveReply{State: StateRejected, Result: Result{Status: 400, BodyOmitted: true}}).AppendJSON(nil, "t"))
	golden(t, "problem.json", (&Problem{Status: 422, Code: CodeFingerprintMismatch, Title: "T", Detail: "a\n\"b\"\x01\xff"}).AppendJSON(nil))
}

func TestRawFormsEqualTheGoldenFiles(t *testing.T) {
	hex := func(b []byte) []byte {
		var out []byte
		for i, c := range b {
			if i > 0 && i%32 == 0 {
				out = append(out, '\n')
			}
			out = append(out, "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
		}
		return out
	}
	golden(t, "reserve.raw.hex", hex((&ReserveRequest{Key: "k", Scope: "s", Fingerprint: "f", Token: "t", PendingTTL: time.Minute, Wait: time.Second}).AppendRaw(nil)))
	unknown := ReserveRequest{Key: "k", Token: "t", UnknownTTL: time.Second}
	golden(t, "reserve-unknown.raw.hex", hex(unknown.AppendRaw(nil)))
	unknown.UnknownTTL = NoUnknown
	golden(t, "reserve-no-unknown.raw.hex", hex(unknown.AppendRaw(nil)))
	golden(t, "commit.raw.hex", hex((&FinishRequest{Key: "k", Scope: "s", Token: "t", Fingerprint: "f", TTL: time.Hour, Result: sampleResult}).AppendRaw(nil)))
	golden(t, "commit-global.raw.hex", hex((&FinishRequest{Key: "k", Token: "t", Durability: DurabilityGlobal, Result: sampleResult}).AppendRaw(nil)))
	golden(t, "release.raw.hex", hex((&ReleaseRequest{Key: "k", Scope: "s", Token: "t"}).AppendRaw(nil)))
	golden(t, "reply.raw.hex", hex((&ReserveReply{State: StateCommitted, ExpiresIn: time.Second, Result: sampleResult}).AppendRaw(nil)))
}

// canon makes no difference between an empty body and none.
func canon(f FinishRequest) FinishRequest {
	if len(f.Result.Body) == 0 {
		f.Result.Body = nil
	}
	return f
}

// Each mistake is told by the field's name and what is allowed.
func TestRefusalsNameFieldAndAllowedValues(t *testing.T) {
	for _, c := range []struct{ form, body, want string }{
		{"reserve", ``, "body: must be one valid JSON value"},
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
		{"reserve", `{"wait_ms":31622400001}`, `wait_ms: "31622400001": must be a whole number from 0 to 31622400000`},
		{"reserve", `{"wait_ms":9999999999999999999999}`, `wait_ms: "9999999999999999999999": must be a whole number from 0 to 31622400000`},
		{"reserve", `{"unknown_ttl_ms":-1}`, `unknown_ttl_ms: "-1": must be a whole number from 0 to 31622400000`},
		{"reserve", `{"key":[[[[[1]]]]]}`, "body: must be JSON nested at most 4 deep"},
		{"commit", `{"key":"k","token":"t"}`, "result: is missing: must be {status, headers, body}"},
		{"commit", `{"result":[]}`, "result: must be a JSON object"},
		{"commit", `{"result":{"status":99}}`, `result.status: "99": must be 100 to 999`},
		{"commit", `{"result":{"status":200,"headers":{}}}`, "result.headers: must be an array of [name, value]"},
		{"commit", `{"result":{"status":200,"headers":[["a"]]}}`, `result.headers: "[\"a\"]": must be an array of [name, value]`},
		{"commit", `{"result":{"status":200,"headers":[["a","b","c"]]}}`, `result.headers: "[\"a\",\"b\",\"c\"]": must be an array of [name, value]`},
		{"commit", `{"result":{"status":200,"headers":[["a",1]]}}`, `result.headers: "[\"a\",1]": must be an array of [name, value]`},
		{"commit", `{"result":{"headers":[["a","` + "\xab" + `"]]}}`, `result.headers: "a": header values must be UTF-8 in JSON; the raw form takes any bytes`},
		{"commit", `{"result":{"status":200,"body":"a"}}`, `result.body: "a": must be base64 with padding`},
		{"commit", `{"result":{"status":200,"body":1}}`, `result.body: "1": must be a string`},
		{"commit", `{"result":{"status":200,"body_omitted":1}}`, `result.body_omitted: "1": must be true or false`},
		{"commit", `{"result":{"status":200,"trailers":[]}}`, "result.trailers: unknown field"},
		{"release", `{"key":"k","result":{}}`, "result: unknown field"},
	} {
		var err error
		switch c.form {
		case "reserve":
			err = new(ReserveRequest).ParseJSON([]byte(c.body))
		case "commit":
			err = new(FinishRequest).ParseJSON([]byte(c.body))
		default:
			err = new(ReleaseRequest).ParseJSON([]byte(c.body))
		}
		if err == nil || err.Error() != c.want {
			t.Errorf("%s %s\n got %v\nwant %s", c.form, c.body, err, c.want)
		}
		var field *FieldError
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
		s, err := TextField("id", gjson.Parse(`"`+raw+`"`))
		if s != want || (err == nil) != (want != "" || raw == "") {
			t.Errorf("%q: %q, %v, want %q", raw, s, err, want)
		}
	}
}

func TestValidationRefusesBadFields(t *testing.T) {
	long := strings.Repeat("x", 300)
	good := func() FinishRequest {
		return FinishRequest{Key: "k", Token: "t", Result: Result{Status: 200}}
	}
	for want, change := range map[string]func(*FinishRequest){
		`key: must be 1 to 255 bytes of printable ASCII without a blank at either end`:                                     func(r *FinishRequest) { r.Key = "" },
		`key: " a": must be 1 to 255 bytes of printable ASCII without a blank at either end`:                               func(r *FinishRequest) { r.Key = " a" },
		`key: "a ": must be 1 to 255 bytes of printable ASCII without a blank at either end`:                               func(r *FinishRequest) { r.Key = "a " },
		`scope: "a b": must be at most 255 bytes of visible ASCII`:                                                         func(r *FinishRequest) { r.Scope = "a b" },
		`key: "\u00e9": must be 1 to 255 bytes of printable ASCII without a blank at either end`:                           func(r *FinishRequest) { r.Key = "é" },
		`key: "` + long[:64] + `... (256 bytes)": must be 1 to 255 bytes of printable ASCII without a blank at either end`: func(r *FinishRequest) { r.Key = long[:256] },
		`scope: "\x7f": must be at most 255 bytes of visible ASCII`:                                                        func(r *FinishRequest) { r.Scope = "\x7f" },
		`token: must be 1 to 64 bytes of visible ASCII`:                                                                    func(r *FinishRequest) { r.Token = "" },
		`fingerprint: "\n": must be at most 128 bytes of visible ASCII`:                                                    func(r *FinishRequest) { r.Fingerprint = "\n" },
		`ttl_ms: "-1": must be a whole number from 0 to 31622400000`:                                                       func(r *FinishRequest) { r.TTL = -time.Millisecond },
		`result.status: "1000": must be 100 to 999`:                                                                        func(r *FinishRequest) { r.Result.Status = 1000 },
		`result.headers: "A": header names must be lower-case HTTP tokens`:                                                 func(r *FinishRequest) { r.Result.Headers = []Header{{"A", ""}} },
		`result.headers: ":status": header names must be lower-case HTTP tokens`:                                           func(r *FinishRequest) { r.Result.Headers = []Header{{":status", "1"}} },
		`result.headers: header names must be lower-case HTTP tokens`:                                                      func(r *FinishRequest) { r.Result.Headers = []Header{{"", ""}} },
		`result.headers: "a": header values must not hold control characters`:                                              func(r *FinishRequest) { r.Result.Headers = []Header{{"a", "b\r\nc: d"}} },
		`result.headers: "257 headers": must be at most 256 headers of 65536 bytes in all`:                                 func(r *FinishRequest) { r.Result.Headers = make([]Header, 257) },
		`result.headers: "65537 bytes": must be at most 256 headers of 65536 bytes in all`:                                 func(r *FinishRequest) { r.Result.Headers = []Header{{"a", strings.Repeat("x", 65536)}} },
		`result.body: must be empty when the body is omitted`:                                                              func(r *FinishRequest) { r.Result.BodyOmitted, r.Result.Body = true, []byte("x") },
	} {
		r := good()
		change(&r)
		err := r.Validate()
		if err == nil || err.Error() != want {
			t.Errorf("got %v\nwant %s", err, want)
		}
		// The check of the encoded result is no more lenient.
		if strings.HasPrefix(want, "result.") {
			if _, _, err := CheckRawResult(r.Result.AppendRaw(nil)); err == nil {
				t.Errorf("CheckRawResult accepts what is refused with: %s", want)
			}
		}
	}
	r := good()
	r.Key, r.Scope, r.Fingerprint, r.Token = long[:255], long[:255], long[:128], long[:64]
	if err := r.Validate(); err != nil {
		t.Errorf("values at their bounds: %v", err)
	}
	field := new(FieldError)
	if err := ValidateKey(""); !errors.As(err, &field) || field.Problem().Code != CodeInvalidKey {
		t.Errorf("the problem of a bad key: %+v", field.Problem())
	}
}

func TestProblemRoundTrip(t *testing.T) {
	in := Problem{Status: 409, Code: CodeFenced, Title: "Fenced", Detail: "a \"b\""}
	b := in.AppendJSON(nil)
	var out Problem
	if err := out.ParseJSON(b); err != nil || out != in {
		t.Errorf("%+v %v", out, err)
	}
	var any map[string]any
	if err := json.Unmarshal(b, &any); err != nil || any["type"] != "urn:oncegate:problem:fenced" {
		t.Errorf("%v %v", any, err)
	}
}

func TestMembersAreBounded(t *testing.T) {
	var b bytes.Buffer
	b.WriteString(`{"state":"pending"`)
	for i := range 100 {
		b.WriteString(`,"` + strings.Repeat("x", i+1) + `":1`)
	}
	b.WriteString(`}`)
	if err := new(ReserveReply).ParseJSON(b.Bytes()); err == nil || !strings.Contains(err.Error(), "64 members") {
		t.Error(err)
	}
}

func FuzzParseJSON(f *testing.F) {
	finish := FinishRequest{Key: "k", Scope: "s", Token: "t", Result: sampleResult}
	f.Add(finish.AppendJSON(nil))
	f.Add((&ReserveRequest{Key: "k", Token: "t", Wait: time.Second}).AppendJSON(nil))
	f.Add((&ReserveRequest{Key: "k", Token: "t", UnknownTTL: NoUnknown}).AppendJSON(nil))
	f.Add((&ReserveReply{State: StateCommitted, Result: sampleResult}).AppendJSON(nil, ""))
	f.Add([]byte(`{"key":"\ud800","token":"\u0000"}`))
	f.Add([]byte(`{"result":{"headers":[[[[[]]]]]}}`))
	f.Add([]byte(`{"wait_ms":1e3,"pending_ttl_ms":00}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r ReserveRequest
		if r.ParseJSON(b) == nil && r.Validate() == nil {
			var again ReserveRequest
			if err := again.ParseJSON(r.AppendJSON(nil)); err != nil || again != r {
				t.Fatalf("%+v became %+v: %v", r, again, err)
			}
		}
		var fin FinishRequest
		if fin.ParseJSON(b) == nil && fin.Validate() == nil {
			var again FinishRequest
			out := fin.AppendJSON(nil)
			if !json.Valid(out) {
				t.Fatalf("not JSON: %s", out)
			}
			if err := again.ParseJSON(out); err != nil || !reflect.DeepEqual(canon(fin), canon(again)) {
				t.Fatalf("%+v became %+v: %v", fin, again, err)
			}
			if _, _, err := CheckRawResult(fin.Result.AppendRaw(nil)); err != nil {
				t.Fatalf("valid as JSON, not in the raw form: %v", err)
			}
		}
		_ = new(ReleaseRequest).ParseJSON(b)
		_ = new(ReserveReply).ParseJSON(b)
		_ = new(Problem).ParseJSON(b)
		// What the check of depth lets through, the standard library accepts.
		if CheckJSON(b, MaxJSONDepth) == nil && !json.Valid(b) {
			t.Fatalf("accepted as JSON: %q", b)
		}
	})
}

func FuzzParseRaw(f *testing.F) {
	finish := FinishRequest{Key: "k", Scope: "s", Token: "t", TTL: time.Second, Result: sampleResult}
	f.Add(finish.AppendRaw(nil))
	f.Add((&ReserveRequest{Key: "k", Token: "t", Wait: time.Second}).AppendRaw(nil))
	f.Add((&ReserveRequest{Key: "k", Token: "t", UnknownTTL: time.Second}).AppendRaw(nil))
	f.Add((&ReleaseRequest{Key: "k", Token: "t"}).AppendRaw(nil))
	f.Add((&ReserveReply{State: StateCommitted, Result: sampleResult}).AppendRaw(nil))
	f.Add(sampleResult.AppendRaw(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r, view ReserveRequest
		if parsed, viewed := r.ParseRaw(b), view.ViewRaw(b); !reflect.DeepEqual(parsed, viewed) || parsed == nil && r != view {
			t.Fatalf("parsed %+v, %v; viewed %+v, %v", r, parsed, view, viewed)
		} else if parsed == nil {
			var again ReserveRequest
			if err := again.ParseRaw(r.AppendRaw(nil)); err != nil || again != r {
				t.Fatalf("%+v became %+v: %v", r, again, err)
			}
		}
		var fin FinishRequest
		if fin.ParseRaw(b) == nil {
			var again FinishRequest
			if err := again.ParseRaw(fin.AppendRaw(nil)); err != nil || !reflect.DeepEqual(fin, again) {
				t.Fatalf("%+v became %+v: %v", fin, again, err)
			}
			result, err := again.ViewRawFinish(b)
			if err != nil {
				t.Fatal(err)
			}
			// The two readers of a result agree.
			_, _, err = CheckRawResult(result)
			if valid := fin.Result.Validate(); (err == nil) != (valid == nil) {
				t.Fatalf("checked %v, validated %v", err, valid)
			}
		}
		var l, lview ReleaseRequest
		if parsed, viewed := l.ParseRaw(b), lview.ViewRaw(b); !reflect.DeepEqual(parsed, viewed) || parsed == nil && l != lview {
			t.Fatalf("parsed %+v, %v; viewed %+v, %v", l, parsed, lview, viewed)
		}
		var reply ReserveReply
		if reply.ParseRaw(b) == nil {
			_ = reply.AppendJSON(nil, "")
		}
		var result Result
		_, _, err := CheckRawResult(b)
		if parsed := result.ParseRaw(b); err == nil && parsed != nil {
			t.Fatalf("checked but not readable: %v", parsed)
		}
	})
}

// Every byte at every place of strings around a multiple of eight.
func TestVisibleLooksAtEveryByte(t *testing.T) {
	for n := 1; n <= 17; n++ {
		for at := range n {
			for c := range 256 {
				b := bytes.Repeat([]byte("~"), n)
				for i := range b {
					if i%2 == 0 {
						b[i] = '!'
					}
				}
				b[at] = byte(c)
				if got, want := Visible(string(b), 1, 17), c >= 0x21 && c <= 0x7e; got != want {
					t.Fatalf("%q is visible: %v, want %v", b, got, want)
				}
				inside := at > 0 && at < n-1
				if got, want := ValidKey(string(b)), c >= 0x21 && c <= 0x7e || c == ' ' && inside; got != want || (WrongKey(string(b)) == "") != want {
					t.Fatalf("%q is a key: %v, want %v", b, got, want)
				}
			}
		}
	}
	if Visible("", 1, 8) || Visible("123456789", 1, 8) || !Visible("", 0, 8) {
		t.Error("the length is not looked at")
	}
}

func TestWholeNumberCutsAFractionOfZeros(t *testing.T) {
	for raw, want := range map[string]string{
		"1": "1", "1.0": "1", "-1.000": "-1", "1.5": "1.5", "1.": "1.", "1.0e3": "1.0e3", "": "", ".": ".", "0.0": "0", "10.00": "10",
	} {
		if got := WholeNumber(raw); got != want {
			t.Errorf("%q: %q, want %q", raw, got, want)
		}
	}
}
