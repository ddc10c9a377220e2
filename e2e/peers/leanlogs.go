package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
)

// logCalls appends entries to a log of the manager, one in a request or so many in a batch.
type logCalls struct {
	run     string
	batch   int
	payload string
	scratch []byte
}

func newLogCalls(batch int) *logCalls {
	return &logCalls{run: runName(), batch: batch, payload: base64.StdEncoding.EncodeToString(entryPayload)}
}

func (l *logCalls) request(dst []byte, conn, n int) []byte {
	body := l.scratch[:0]
	if l.batch == 1 {
		body = l.entry(body, conn, n)
	} else {
		body = append(body, `{"entries":[`...)
		for i := range l.batch {
			if i > 0 {
				body = append(body, ',')
			}
			body = l.entry(body, conn, n*l.batch+i)
		}
		body = append(body, `]}`...)
	}
	l.scratch = body
	dst = append(dst, "POST /v1/logs/"+logName+"/entries HTTP/1.1\r\nhost: m\r\ncontent-type: "+api.ContentTypeJSON+"\r\ncontent-length: "...)
	return append(append(appendNumber(dst, len(body)), "\r\n\r\n"...), body...)
}

func (l *logCalls) entry(dst []byte, conn, n int) []byte {
	dst = appendKey(append(dst, `{"id":"`...), l.run, conn, n)
	return append(append(append(dst, `","payload":"`...), l.payload...), `"}`...)
}

func (l *logCalls) answer(b []byte) (int, error) {
	end, body, err := httpAnswer(b)
	if err != nil || end == 0 {
		return 0, err
	}
	if l.batch > 1 && bytes.Count(body, []byte(`"status":201`)) != l.batch {
		return 0, fmt.Errorf("manager: %s", body)
	}
	return end, nil
}

// natsPublishes publishes entries with ids, so many before it waits for their acknowledgements. A
// connection begins with what a client says first, and with the inbox for the answers.
type natsPublishes struct {
	run   string
	batch int
}

func (p *natsPublishes) request(dst []byte, conn, n int) []byte {
	inbox := "_INBOX." + p.run + "." + fmt.Sprint(conn)
	if n == 0 {
		dst = append(dst, `CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":false,"protocol":1}`+"\r\nSUB "+inbox+" 1\r\n"...)
	}
	const head = "NATS/1.0\r\nNats-Msg-Id: "
	const headBytes = len(head) + 32 + len("\r\n\r\n")
	for i := range p.batch {
		dst = append(dst, "HPUB "+logName+" "+inbox+" "...)
		dst = append(appendNumber(dst, headBytes), ' ')
		dst = append(appendNumber(dst, headBytes+entryBytes), "\r\n"+head...)
		dst = append(appendKey(dst, p.run, conn, n*p.batch+i), "\r\n\r\n"...)
		dst = append(append(dst, entryPayload...), "\r\n"...)
	}
	return dst
}

func (p *natsPublishes) answer(b []byte) (int, error) {
	rest := b
	for acks := 0; acks < p.batch; {
		end := bytes.Index(rest, []byte("\r\n"))
		if end < 0 {
			return 0, nil
		}
		line := string(rest[:end])
		rest = rest[end+2:]
		switch {
		case strings.HasPrefix(line, "INFO "), line == "PING", line == "PONG":
			// A round ends before the server misses an answer to its PING.
		case strings.HasPrefix(line, "MSG "):
			end := bytes.Index(rest, []byte("\r\n"))
			if end < 0 {
				return 0, nil
			}
			if ack := rest[:end]; bytes.Contains(ack, []byte(`"error"`)) || !bytes.Contains(ack, []byte(`"seq":`)) {
				return 0, fmt.Errorf("nats: %s", ack)
			}
			rest = rest[end+2:]
			acks++
		default:
			return 0, fmt.Errorf("nats: %q", line)
		}
	}
	return len(b) - len(rest), nil
}

// streamAdds is XADD, or with sha the script that does it once for each id, so many in a pipeline.
type streamAdds struct {
	run   string
	batch int
	sha   string
}

func (s *streamAdds) request(dst []byte, conn, n int) []byte {
	for i := range s.batch {
		if s.sha != "" {
			dst = append(dst, "*7\r\n$7\r\nEVALSHA\r\n$40\r\n"+s.sha+"\r\n$1\r\n2\r\n$5\r\n"+logName+"\r\n$32\r\n"...)
			dst = append(appendKey(dst, s.run, conn, n*s.batch+i), "\r\n$32\r\n"...)
			dst = append(appendKey(dst, s.run, conn, n*s.batch+i), "\r\n$256\r\n"...)
		} else {
			dst = append(dst, "*7\r\n$4\r\nXADD\r\n$5\r\n"+logName+"\r\n$1\r\n*\r\n$2\r\nid\r\n$32\r\n"...)
			dst = append(appendKey(dst, s.run, conn, n*s.batch+i), "\r\n$7\r\npayload\r\n$256\r\n"...)
		}
		dst = append(append(dst, entryPayload...), "\r\n"...)
	}
	return dst
}

func (s *streamAdds) answer(b []byte) (int, error) {
	rest := b
	for range s.batch {
		for range 2 { // $LENGTH, and the entry's id
			end := bytes.Index(rest, []byte("\r\n"))
			if end < 0 {
				return 0, nil
			}
			if rest[0] == '-' {
				return 0, fmt.Errorf("redis: %s", rest[:end])
			}
			rest = rest[end+2:]
		}
	}
	return len(b) - len(rest), nil
}
