package gate

import (
	"reflect"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
)

func TestHopByHopHeadersAreNotRecorded(t *testing.T) {
	got, fits := recordedHeaders([][2]string{
		{":status", "200"}, {"content-type", "text/plain"}, {"connection", "X-Hop , close"}, {"x-hop", "1"},
		{"keep-alive", "1"}, {"transfer-encoding", "chunked"}, {"content-length", "3"}, {"date", "d"}, {"age", "1"},
		{"set-cookie", "a"}, {"set-cookie", "b"}, {"x-empty", ""}, {"idempotency-status", "executed"},
		{"idempotent-replayed", "true"}, {"idempotency-ledger", "none"}, {"trailer", "x"}, {"", "nameless"},
		{"x-envoy-upstream-service-time", "1"}, {"server", "s"},
	}, defaultRoute(t))
	want := []api.Header{
		{Name: "content-type", Value: "text/plain"}, {Name: "original-date", Value: "d"},
		{Name: "x-empty", Value: ""}, {Name: "server", Value: "s"},
	}
	if !fits || !reflect.DeepEqual(got, want) {
		t.Errorf("recorded %v, %v", got, fits)
	}
}

func defaultRoute(t *testing.T) *config.Route {
	t.Helper()
	return routeOf(t, "")
}

func routeOf(t *testing.T, text string) *config.Route {
	t.Helper()
	c, err := config.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c.Route("POST", "/")
}

func TestOnlyKeptHeadersAreRecorded(t *testing.T) {
	in := [][2]string{
		{"content-type", "t"}, {"content-encoding", "gzip"}, {"set-cookie", "c"}, {"x-a", "1"}, {"x-b", "2"}, {"date", "d"},
		{"original-date", "o"}, {"location", "/l"}, {"replayed", "yes"},
	}
	for text, want := range map[string]string{
		`{}`:                               "content-type content-encoding x-a x-b original-date location replayed",
		`{"response":{"drop_headers":[]}}`: "content-type content-encoding set-cookie x-a x-b original-date location replayed",
		`{"response":{"keep_headers":[]}}`: "content-type content-encoding original-date",
		`{"response":{"keep_headers":["Location","x-*"],"drop_headers":["x-b"]}}`: "content-type content-encoding x-a original-date location",
		`{"response":{"drop_headers":["*"]}}`:                                     "content-type content-encoding",
		`{"replay":{"header":"Replayed"}}`:                                        "content-type content-encoding x-a x-b original-date location",
	} {
		got, fits := recordedHeaders(in, routeOf(t, text))
		var names []string
		for _, h := range got {
			names = append(names, h.Name)
			if h.Name == "original-date" && h.Value != "o" {
				t.Errorf("%s: original-date %q", text, h.Value)
			}
		}
		if !fits || strings.Join(names, " ") != want {
			t.Errorf("%s: recorded %v", text, names)
		}
	}
}

func TestRecordedHeadersAreBounded(t *testing.T) {
	many := make([][2]string, api.MaxResultHeaders+1)
	for i := range many {
		many[i] = [2]string{"a", "b"}
	}
	if _, fits := recordedHeaders(many, defaultRoute(t)); fits {
		t.Error("too many headers fit")
	}
	if got, fits := recordedHeaders(many[:api.MaxResultHeaders], defaultRoute(t)); !fits || len(got) != api.MaxResultHeaders {
		t.Error("as many as are allowed do not fit")
	}
	if _, fits := recordedHeaders([][2]string{{"a", strings.Repeat("x", api.MaxResultHeaderBytes)}}, defaultRoute(t)); fits {
		t.Error("too many bytes fit")
	}
	if got, fits := recordedHeaders(nil, defaultRoute(t)); !fits || got != nil {
		t.Error("no headers do not fit")
	}
}

// Upstream's headers are untrusted input.
func FuzzRecordedHeaders(f *testing.F) {
	f.Add("connection", "close, x", "x", "1")
	f.Add("Connection", ",, ,", "", "")
	f.Add(":status", "200", "content-length", "\x00")
	f.Fuzz(func(t *testing.T, n1, v1, n2, v2 string) {
		in := [][2]string{{n1, v1}, {n2, v2}, {n1, v2}}
		got, fits := recordedHeaders(in, defaultRoute(t))
		if !fits {
			return
		}
		// What is recorded is a subsequence of what came.
		at := 0
		for _, h := range got {
			for at < len(in) && (in[at][0] != h.Name && (in[at][0] != "date" || h.Name != "original-date") || in[at][1] != h.Value) {
				at++
			}
			if at == len(in) {
				t.Fatalf("%q: %q was not there", in, h)
			}
			at++
			if h.Name == "" || h.Name[0] == ':' || h.Name == "connection" {
				t.Fatalf("%q was recorded", h.Name)
			}
		}
	})
}

func TestHeaderValuesAreParsed(t *testing.T) {
	for in, want := range map[int64]int{-5: 1, 0: 1, 1: 1, second: 1, second + 1: 2, 1 << 60: maxRetryAfterSeconds} {
		if got := retryAfter(in); got != want {
			t.Errorf("retryAfter(%d) = %d", in, got)
		}
	}
	for in, want := range map[string]bool{
		"application/grpc": true, "application/grpc+proto": true, "application/grpc-web-text": true,
		"application/grpcx": false, "application/json": false, "": false,
	} {
		if isGRPC(in) != want {
			t.Errorf("isGRPC(%q) = %v", in, !want)
		}
	}
}
