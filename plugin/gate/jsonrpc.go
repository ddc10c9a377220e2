package gate

import (
	"bytes"
	"strings"

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

func batchProblem() *api.Problem {
	return &api.Problem{Status: 400, Code: api.CodeInvalidRequest,
		Title:  "A batch of JSON-RPC requests cannot be protected",
		Detail: "The batch was not executed. Send each request by itself."}
}

// withID returns the body of a recorded answer with another id in its response. In an event stream it looks at each line of
// data. id is JSON; empty: the answer stays as it is.
func withID(body []byte, media, id string) []byte {
	switch {
	case id == "":
		return body
	case media != "text/event-stream":
		return replaceID(nil, body, id)
	}
	out := make([]byte, 0, len(body)+len(id))
	for len(body) > 0 {
		line := body
		if end := bytes.IndexAny(body, "\r\n"); end >= 0 {
			line = body[:end+1]
		}
		body = body[len(line):]
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			out = replaceID(append(out, "data:"...), data, id)
		} else {
			out = append(out, line...)
		}
	}
	return out
}

// replaceID appends message to dst, with another id if it is a response that has one. Without dst it returns message itself
// if nothing changes.
func replaceID(dst, message []byte, id string) []byte {
	old := gjson.GetBytes(message, "id")
	response := gjson.GetBytes(message, "result").Exists() || gjson.GetBytes(message, "error").Exists()
	if !response || old.Index == 0 || old.Type != gjson.String && old.Type != gjson.Number {
		if dst == nil {
			return message
		}
		return append(dst, message...)
	}
	dst = append(dst, message[:old.Index]...)
	dst = append(dst, id...)
	return append(dst, message[old.Index+len(old.Raw):]...)
}
