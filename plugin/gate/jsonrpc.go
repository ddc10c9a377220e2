package gate

import (
	"bytes"
	"strconv"
	"strings"
	"unsafe"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
)

// JSON-RPC 2.0 over HTTP: each try of a request has another id, and an answer repeats the id of its request. So a replay has
// the id of the retry.

// maxIDBytes bounds the ids that replays repeat. Other ids are no reason to refuse a request: its replay has the recorded id.
const maxIDBytes = 256

// rewritesID reports whether replays get another id. The gate cannot change an answer with a content encoding, so upstream
// must not make one.
func (s *Stream) rewritesID() bool { return s.requestID != "" && s.key != "" }

// requestID returns the id of a JSON-RPC request, as JSON; empty: the body has none that a replay could repeat.
func requestID(body []byte) string {
	id := gjson.GetBytes(body, "id")
	if id.Type != gjson.String && id.Type != gjson.Number || len(id.Raw) > maxIDBytes || !gjson.Valid(id.Raw) {
		return ""
	}
	return strings.Clone(id.Raw)
}

// isBatch reports whether a body is a list.
func isBatch(body []byte) bool {
	body = bytes.TrimLeft(body, " \t\r\n")
	return len(body) > 0 && body[0] == '['
}

// unreadMessageProblem is for a request with a key, of whose body the gate cannot read the id: the id is no part of the
// fingerprint, and a replay needs it.
func unreadMessageProblem(limit int) *api.Problem {
	return &api.Problem{Status: 400, Code: api.CodeInvalidRequest,
		Title:  "This JSON-RPC request cannot be protected",
		Detail: "The request was not executed. With a key, a body must have at most " + strconv.Itoa(limit) + " bytes and no content encoding."}
}

// withID returns the body of a recorded answer with another id in its response; in an event stream, in each response. The
// stream's requests and notifications were for the first try: a client would answer them again, so they are left out. id is
// JSON; empty: the answer stays as it is. answered is false for a stream without a response, after which a client would wait.
func withID(body []byte, media, id string) (out []byte, answered bool) {
	if id == "" {
		return body, true
	}
	out = make([]byte, 0, len(body)+len(id))
	if media != "text/event-stream" {
		return appendWithID(out, body, unsafe.String(unsafe.SliceData(body), len(body)), id), true
	}
	// A message may be spread over several lines of data. So the gate looks at the data of an event with blanks in the place
	// of everything else.
	data := bytes.Clone(body)
	begin := 0 // of the event
	for at := 0; at < len(body); {
		line := firstLine(data[at:])
		at += len(line)
		last := at == len(body) || line[0] == '\r' || line[0] == '\n'
		blankField(line)
		if !last {
			continue
		}
		if message := unsafe.String(&data[begin], at-begin); !gjson.Get(message, "method").Exists() {
			answered = answered || isResponse(message)
			out = appendWithID(out, body[begin:at], message, id)
		}
		begin = at
	}
	return out, answered
}

// firstLine returns the first line of a text that is not empty, with its end: CR, LF or both.
func firstLine(text []byte) []byte {
	end := bytes.IndexAny(text, "\r\n")
	switch {
	case end < 0:
		return text
	case bytes.HasPrefix(text[end:], []byte("\r\n")):
		return text[:end+2]
	}
	return text[:end+1]
}

// blankField blanks a line of an event stream, except its data.
func blankField(line []byte) {
	const name = "data:"
	if bytes.HasPrefix(line, []byte(name)) {
		line = line[:len(name)]
	}
	for i := range line {
		line[i] = ' '
	}
}

// appendWithID appends text to dst, with another id if its message is a response that has one. message is as long as text.
func appendWithID(dst, text []byte, message, id string) []byte {
	old := gjson.Get(message, "id")
	if !isResponse(message) || old.Index == 0 || old.Type != gjson.String && old.Type != gjson.Number || !gjson.Valid(old.Raw) {
		return append(dst, text...)
	}
	dst = append(dst, text[:old.Index]...)
	dst = append(dst, id...)
	return append(dst, text[old.Index+len(old.Raw):]...)
}

func isResponse(message string) bool {
	return gjson.Get(message, "result").Exists() || gjson.Get(message, "error").Exists()
}
