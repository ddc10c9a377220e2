package jobs

import (
	"encoding/json"
	"strings"
	"testing"
)

func FuzzValidJSON(f *testing.F) {
	for _, s := range []string{
		"", " ", "1", "-0", "01", "1.", "1e5", "1E+", `"\u00g0"`, "\"\x00\"", "\"\xff\"", "[1,]", `{"a":1,}`, "tru", "true false",
		"{\"a\" : [ ] }\n", "\ufeff1", `"\/\b"`, "nul", "[[[", "{1:2}", `"a`, `"\"`,
		strings.Repeat("[", 10000) + strings.Repeat("]", 10000), strings.Repeat("[", 10001) + strings.Repeat("]", 10001),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, want := validJSON(b), json.Valid(b); got != want {
			t.Errorf("%.200q: %t, want %t", b, got, want)
		}
	})
}

// TestJobsThatStandAlone: a claim reads other records for all others.
func TestJobsThatStandAlone(t *testing.T) {
	job := func(change func(*record)) []byte {
		r := &record{Job: Job{ID: "a", Function: "f", State: Queued, Payload: []byte("1")}}
		change(r)
		return r.encode()
	}
	for name, c := range map[string]struct {
		b    []byte
		want bool
	}{
		"plain":        {job(func(*record) {}), true},
		"large result": {job(func(r *record) { r.ResultBlob = 1000 }), true},
		"large":        {job(func(r *record) { r.PayloadBlob = 1000 }), false},
		"locked":       {job(func(r *record) { r.LockID, r.Dedup = "l", &Dedup{} }), false},
		"empty":        {nil, false},
		"newer":        {[]byte{99, 0}, false},
	} {
		if got := standsAlone(c.b); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
