package gate

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

func TestReplayHasTheRetrysID(t *testing.T) {
	const events, plain = "text/event-stream", "application/json"
	for _, c := range []struct {
		what, media, body, want string
		answered                bool
	}{
		{"an answer", plain, `{"id":1,"result":{"id":1}}`, `{"id":"new","result":{"id":1}}`, true},
		{"an event", events, "data: {\"id\":1,\"result\":{}}\n\n", "data: {\"id\":\"new\",\"result\":{}}\n\n", true},
		{"several lines of data", events, "id: 1\ndata: {\ndata:  \"id\": 1,\n: x\ndata:\ndata: \"result\": {}\ndata: }\n\n", "id: 1\ndata: {\ndata:  \"id\": \"new\",\n: x\ndata:\ndata: \"result\": {}\ndata: }\n\n", true},
		{"the id after its name's line", events, "data: {\"id\":\r\ndata: 1,\r\ndata: \"error\": {}}\r\n\r\n", "data: {\"id\":\r\ndata: \"new\",\r\ndata: \"error\": {}}\r\n\r\n", true},
		{"lines that end in CR", events, "data: {\"id\":1,\rdata:\"result\":1}\r\rdata: {\"id\":1,\rdata:\"result\":2}\r\r", "data: {\"id\":\"new\",\rdata:\"result\":1}\r\rdata: {\"id\":\"new\",\rdata:\"result\":2}\r\r", true},
		{"a line without colon", events, "data\ndata:{\"id\":1,\ndata:\"result\":1}\ndata\n\n", "data\ndata:{\"id\":\"new\",\ndata:\"result\":1}\ndata\n\n", true},
		{"no blank line at the end", events, "data: {\"id\":1,\ndata: \"result\":1}", "data: {\"id\":\"new\",\ndata: \"result\":1}", true},
		{"two events are two messages", events, "data: {\"id\":1,\n\ndata: \"result\":1}\n\n", "data: {\"id\":1,\n\ndata: \"result\":1}\n\n", false},
		{"a text over two lines is no JSON", events, "data: {\"id\":\"a\ndata: b\",\"result\":1}\n\n", "data: {\"id\":\"a\ndata: b\",\"result\":1}\n\n", true},
		{"a request of the server", events, "data: {\"id\":0,\ndata: \"method\":\"ping\"}\n\n: x\n\ndata: {\"id\":1,\"result\":{}}\n\n", ": x\n\ndata: {\"id\":\"new\",\"result\":{}}\n\n", true},
		{"a notification", events, "event: message\ndata: {\"method\":\"notifications/progress\"}\n\n", "", false},
		{"a method in the result", events, "data: {\"id\":1,\"result\":{\"method\":1}}\n\n", "data: {\"id\":\"new\",\"result\":{\"method\":1}}\n\n", true},
	} {
		body := []byte(c.body)
		got, answered := withID(body, c.media, `"new"`)
		if string(got) != c.want || string(body) != c.body || answered != c.answered {
			t.Errorf("%s: got %q, answered %v, want %q", c.what, got, answered, c.want)
		}
	}
}

// However a server spreads its message over lines of data, the client reads the same message with another id.
func FuzzReplayedID(f *testing.F) {
	f.Add(`{"jsonrpc": "2.0", "id": 1, "result": {"id": 1}}`, uint64(0), "\n")
	f.Add(`{"id":"a\"b","error":{"code":-32000}}`, ^uint64(0), "\r\n")
	f.Add(`{"method":"x","id":2}`, uint64(0x10), "\r")
	f.Fuzz(func(t *testing.T, message string, breaks uint64, end string) {
		if !gjson.Valid(message) || strings.ContainsAny(message, "\r\n") || end != "\n" && end != "\r" && end != "\r\n" {
			return
		}
		plain, _ := withID([]byte(message), "application/json", `"new"`)
		want := string(plain)
		event := spread(message, breaks, end)
		got, _ := withID([]byte(event), "text/event-stream", `"new"`)
		if gjson.Get(message, "method").Exists() {
			if len(got) > 0 {
				t.Errorf("got %q of a request", got)
			}
			return
		}
		if want == message && string(got) != event {
			t.Errorf("got %q, want it unchanged: %q", got, event)
		}
		if !bytes.HasPrefix(got, []byte("data: ")) || gjson.Get(unspread(string(got), end), "@ugly").Raw != gjson.Get(want, "@ugly").Raw {
			t.Errorf("got %q for %q, want the message %q", got, event, want)
		}
	})
}

// Any bytes may come from clients and servers. A second replay of a replay is the same, and what the standard library reads of
// an answer has the new id.
func FuzzMessages(f *testing.F) {
	for _, body := range []string{`{"id":1,"result":{}}`, `{"id":"a","error":{}}`, "data: {\"id\":1,\ndata: \"result\":1}\n\ndata: {\"method\":1}\r\r", `[{"id":1}]`, `{"id":{"id":1},"result":1}`, `{"\u0069d":1,"result":[`, "data"} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		if id := requestID([]byte(body)); id != "" && (len(id) > maxIDBytes || !json.Valid([]byte(id)) || strings.ContainsAny(id[:1], "{[tfn")) {
			t.Errorf("request %q has the id %q", body, id)
		}
		isBatch([]byte(body))
		for _, media := range []string{"application/json", "text/event-stream"} {
			once, answered := withID([]byte(body), media, `"new"`)
			if again, same := withID(once, media, `"new"`); !bytes.Equal(again, once) || same != answered {
				t.Errorf("%s: %q gives %q, and that gives %q", media, body, once, again)
			}
		}
		var message map[string]json.RawMessage
		once, _ := withID([]byte(body), "application/json", `"new"`)
		if json.Unmarshal([]byte(body), &message) != nil {
			return
		}
		var after map[string]json.RawMessage
		if err := json.Unmarshal(once, &after); err != nil || len(after) != len(message) {
			t.Errorf("%q gives %q: %v", body, once, err)
		}
		id := message["id"]
		response := message["result"] != nil || message["error"] != nil
		if want := response && len(id) > 0 && !strings.ContainsAny(string(id[:1]), "{[tfn"); want != (string(after["id"]) == `"new"`) && string(id) != `"new"` && !repeats(body, "id") {
			t.Errorf("%q gives %q", body, once)
		}
	})
}

// repeats reports whether a name may be more than once in an object: readers differ then.
func repeats(object, name string) bool {
	n := 0
	gjson.Parse(object).ForEach(func(key, _ gjson.Result) bool {
		if key.Str == name {
			n++
		}
		return true
	})
	return n > 1
}

// spread makes an event of a message. It breaks lines at commas outside texts, at those whose bit is set in breaks.
func spread(message string, breaks uint64, end string) string {
	event, quoted := "data: ", false
	for at := 0; at < len(message); at++ {
		event += message[at : at+1]
		switch {
		case quoted && message[at] == '\\':
			at++
			event += message[at : at+1]
		case message[at] == '"':
			quoted = !quoted
		case message[at] == ',' && !quoted:
			if breaks&1 != 0 {
				event += end + "data: "
			}
			breaks >>= 1
		}
	}
	return event + end + end
}

// unspread returns the data of an event as a client reads it.
func unspread(event, end string) string {
	return strings.ReplaceAll(strings.TrimPrefix(strings.TrimRight(event, "\r\n"), "data: "), end+"data: ", "\n")
}
