package gate

import (
	"bytes"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

func TestReplayHasTheRetrysID(t *testing.T) {
	const events, plain = "text/event-stream", "application/json"
	for _, c := range []struct{ what, media, body, want string }{
		{"an answer", plain, `{"id":1,"result":{"id":1}}`, `{"id":"new","result":{"id":1}}`},
		{"an event", events, "data: {\"id\":1,\"result\":{}}\n\n", "data: {\"id\":\"new\",\"result\":{}}\n\n"},
		{"several lines of data", events, "id: 1\ndata: {\ndata:  \"id\": 1,\n: x\ndata:\ndata: \"result\": {}\ndata: }\n\n", "id: 1\ndata: {\ndata:  \"id\": \"new\",\n: x\ndata:\ndata: \"result\": {}\ndata: }\n\n"},
		{"the id after its name's line", events, "data: {\"id\":\r\ndata: 1,\r\ndata: \"error\": {}}\r\n\r\n", "data: {\"id\":\r\ndata: \"new\",\r\ndata: \"error\": {}}\r\n\r\n"},
		{"lines that end in CR", events, "data: {\"id\":1,\rdata:\"result\":1}\r\rdata: {\"id\":1,\rdata:\"result\":2}\r\r", "data: {\"id\":\"new\",\rdata:\"result\":1}\r\rdata: {\"id\":\"new\",\rdata:\"result\":2}\r\r"},
		{"a line without colon", events, "data\ndata:{\"id\":1,\ndata:\"result\":1}\ndata\n\n", "data\ndata:{\"id\":\"new\",\ndata:\"result\":1}\ndata\n\n"},
		{"no blank line at the end", events, "data: {\"id\":1,\ndata: \"result\":1}", "data: {\"id\":\"new\",\ndata: \"result\":1}"},
		{"two events are two messages", events, "data: {\"id\":1,\n\ndata: \"result\":1}\n\n", "data: {\"id\":1,\n\ndata: \"result\":1}\n\n"},
		{"a text over two lines is no JSON", events, "data: {\"id\":\"a\ndata: b\",\"result\":1}\n\n", "data: {\"id\":\"a\ndata: b\",\"result\":1}\n\n"},
		{"a request of the server", events, "data: {\"id\":1,\ndata: \"method\":\"ping\"}\n\n", "data: {\"id\":1,\ndata: \"method\":\"ping\"}\n\n"},
	} {
		before := strings.Clone(c.body)
		if got := string(withID([]byte(c.body), c.media, `"new"`)); got != c.want || c.body != before {
			t.Errorf("%s: got %q, want %q", c.what, got, c.want)
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
		want := string(withID([]byte(message), "application/json", `"new"`))
		event := spread(message, breaks, end)
		got := withID([]byte(event), "text/event-stream", `"new"`)
		if want == message && string(got) != event {
			t.Errorf("got %q, want it unchanged: %q", got, event)
		}
		if !bytes.HasPrefix(got, []byte("data: ")) || gjson.Get(unspread(string(got), end), "@ugly").Raw != gjson.Get(want, "@ugly").Raw {
			t.Errorf("got %q for %q, want the message %q", got, event, want)
		}
	})
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
