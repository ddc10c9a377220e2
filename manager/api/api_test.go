package api

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
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
		_ = new(ReserveReply).ParseRaw(b)
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
