package client

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf8"

	"github.com/oncegate/oncegate/manager/api"
)

// readClaim decodes an answer to a claim as encoding/json does, which took a third of the time that a worker's client
// spent on a job.
func readClaim(b []byte) ([]Job, error) {
	if jobs, ok := readPlainClaim(b); ok {
		return jobs, nil
	}
	var out struct {
		Jobs []Job `json:"jobs"`
	}
	err := json.Unmarshal(b, &out)
	return out.Jobs, err
}

// readPlainClaim reads an answer that is plain but for some of its jobs.
func readPlainClaim(b []byte) (jobs []Job, ok bool) {
	p := plain{left: b}
	jobs = []Job{}
	p.list(`{"jobs":[`, `]}`, func() {
		jobs = append(jobs, Job{})
		j := &jobs[len(jobs)-1]
		before := p
		if j.readPlain(&p); p.failed {
			p, *j = before, Job{}
			p.failed = json.Unmarshal(p.value(), j) != nil || p.failed
		}
	})
	return jobs, p.ended()
}

// finished is the answer to one finish of many.
type finished struct {
	ID      string   `json:"id"`
	State   string   `json:"state"`
	Problem *problem `json:"problem"`
}

// readFinished is readClaim for an answer to finishes.
func readFinished(b []byte) ([]finished, error) {
	if results, ok := readPlainFinished(b); ok {
		return results, nil
	}
	var out struct {
		Results []finished `json:"results"`
	}
	err := json.Unmarshal(b, &out)
	return out.Results, err
}

func readPlainFinished(b []byte) (results []finished, ok bool) {
	p := plain{left: b}
	results = []finished{}
	p.list(`{"results":[`, `]}`, func() {
		var f finished
		p.object(func(name []byte) {
			switch string(name) {
			case "id":
				f.ID = p.text()
			case "state":
				f.State = p.text()
			default:
				p.failed = true
			}
		})
		results = append(results, f)
	})
	return results, p.ended()
}

// readPlain reads a job with no members but those that a manager gives every job.
func (j *Job) readPlain(p *plain) {
	p.object(func(name []byte) {
		switch string(name) {
		case "id":
			j.ID = p.text()
		case "function":
			j.Function = p.text()
		case "payload":
			j.Payload = append(j.Payload[:0], p.value()...)
		case "key":
			j.Key = p.text()
		case "state":
			j.State = p.text()
		case "priority":
			j.Priority = p.number()
		case "attempt":
			j.Attempt = p.number()
		case "max_attempts":
			j.MaxAttempts = p.number()
		case "run_at":
			p.with(j.RunAt.UnmarshalJSON)
		case "created_at":
			p.with(j.CreatedAt.UnmarshalJSON)
		case "started_at":
			p.with(j.StartedAt.UnmarshalJSON)
		case "traceparent":
			j.Traceparent = p.text()
		case "lease":
			p.failed = j.Lease != nil
			j.Lease = &Lease{}
			p.object(j.Lease.plainMember(p))
		default:
			p.failed = true
		}
	})
}

func (l *Lease) plainMember(p *plain) func(name []byte) {
	return func(name []byte) {
		switch string(name) {
		case "worker":
			l.Worker = p.text()
		case "token":
			l.Token = p.text()
		case "expires_in_ms":
			l.ExpiresInMS = int64(p.number())
		default:
			p.failed = true
		}
	}
}

// plain reads JSON as managers write it: without blanks, escapes, and null. After it failed its answers mean nothing, and
// encoding/json has to read the text.
type plain struct {
	left   []byte
	failed bool
}

// next reports whether s comes next, and reads it then.
func (p *plain) next(s string) bool {
	if p.failed || len(p.left) < len(s) || string(p.left[:len(s)]) != s {
		return false
	}
	p.left = p.left[len(s):]
	return true
}

func (p *plain) want(s string) { p.failed = !p.next(s) }

func (p *plain) ended() bool { return !p.failed && len(p.left) == 0 }

func (p *plain) list(open, end string, item func()) {
	p.want(open)
	for first := true; !p.next(end) && !p.failed; first = false {
		if !first {
			p.want(",")
		}
		item()
	}
}

func (p *plain) object(member func(name []byte)) {
	p.list("{", "}", func() {
		name := p.quoted()
		if p.want(":"); !p.failed {
			member(name[1 : len(name)-1])
		}
	})
}

// quoted returns a string with its quotes.
func (p *plain) quoted() []byte {
	b := p.left
	if p.want(`"`); p.failed {
		return nil
	}
	for i, c := range p.left {
		if c == '"' {
			p.left = p.left[i+1:]
			return b[:i+2]
		}
		if c < ' ' || c == '\\' || c >= utf8.RuneSelf {
			break
		}
	}
	p.failed = true
	return nil
}

func (p *plain) text() string {
	if b := p.quoted(); !p.failed {
		return string(b[1 : len(b)-1])
	}
	return ""
}

// with lets a type read its string.
func (p *plain) with(unmarshal func([]byte) error) {
	if b := p.quoted(); !p.failed && unmarshal(b) != nil {
		p.failed = true
	}
}

// number reads a whole number. What follows one with a fraction or an exponent is no part of a list.
func (p *plain) number() int {
	i := 0
	for i < len(p.left) && (p.left[i] == '-' || p.left[i]-'0' <= 9) {
		i++
	}
	text := string(p.left[:i])
	n, err := strconv.Atoi(text)
	p.failed = p.failed || err != nil || strconv.Itoa(n) != text // such as 01
	p.left = p.left[i:]
	return n
}

// value reads any value.
func (p *plain) value() []byte {
	end, depth := 0, 0
scan:
	for ; end < len(p.left); end++ {
		switch p.left[end] {
		case '"':
			for end++; end < len(p.left) && p.left[end] != '"'; end++ {
				if p.left[end] == '\\' {
					end++
				}
			}
		case '{', '[':
			depth++
		case '}', ']', ',':
			if depth == 0 {
				break scan
			}
			if p.left[end] != ',' {
				depth--
			}
		}
	}
	b := p.left[:min(end, len(p.left))]
	p.left = p.left[len(b):]
	// A job is nested one deeper than its payload. Blanks would become a part of a json.RawMessage.
	p.failed = p.failed || api.CheckJSON(b, api.MaxJSONDepth+1) != nil || len(bytes.TrimSpace(b)) < len(b)
	return b
}
