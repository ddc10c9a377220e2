package server

import (
	"bytes"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// jsonObject appends the members of an object one by one.
type jsonObject struct {
	b     []byte
	comma bool
}

func (o *jsonObject) name(name string) {
	if o.comma {
		o.b = append(o.b, ',')
	}
	o.comma = true
	o.b = append(o.b, '"')
	o.b = append(o.b, name...)
	o.b = append(o.b, '"', ':')
}

// key is name for one that may need escaping.
func (o *jsonObject) key(name string) {
	if o.comma {
		o.b = append(o.b, ',')
	}
	o.comma = true
	o.b = append(api.AppendJSONString(o.b, name), ':')
}

func (o *jsonObject) open()  { o.b, o.comma = append(o.b, '{'), false }
func (o *jsonObject) close() { o.b, o.comma = append(o.b, '}'), true }

func (o *jsonObject) str(name, v string) {
	o.name(name)
	o.b = api.AppendJSONString(o.b, v)
}

// text is str for a member that is left out when it is empty.
func (o *jsonObject) text(name, v string) {
	if v != "" {
		o.str(name, v)
	}
}

func (o *jsonObject) raw(name string, v []byte) {
	o.name(name)
	o.b = append(o.b, v...)
}

// json is raw for a value of a caller. Bytes that are not UTF-8 are refused when they come in. Those that are in a
// store already become U+FFFD, so that the answer is JSON.
func (o *jsonObject) json(name string, v []byte) {
	if !utf8.Valid(v) {
		v = bytes.ToValidUTF8(v, []byte("\uFFFD"))
	}
	o.raw(name, v)
}

func (o *jsonObject) num(name string, v int64) {
	o.name(name)
	o.b = strconv.AppendInt(o.b, v, 10)
}

// flag is left out when it is false.
func (o *jsonObject) flag(name string, v bool) {
	if v {
		o.raw(name, []byte("true"))
	}
}

// time is left out when it is zero.
func (o *jsonObject) time(name string, t time.Time) {
	if t.IsZero() {
		return
	}
	o.name(name)
	o.b = append(o.b, '"')
	o.b = t.UTC().AppendFormat(o.b, time.RFC3339Nano)
	o.b = append(o.b, '"')
}

// jobForm says what an answer shows of a job.
type jobForm uint8

const (
	// formWhole: with payload and result.
	formWhole jobForm = iota
	// formBrief: without.
	formBrief
	// formSubmitted: the answer to a submission, which the ledger and gates remember, so it must stay small. With the
	// payload's size, without payload, result and error.
	formSubmitted
	// formClaimed: formWhole and the lease's token.
	formClaimed
	// formForeign: what a submitter learns of a job that is another's.
	formForeign
)

// job appends the members of a job to an open object.
func (o *jsonObject) job(j *jobs.Job, form jobForm) {
	o.str("id", j.ID)
	o.str("function", j.Function)
	if form == formForeign {
		o.str("state", j.State.String())
		return
	}
	switch {
	case form == formBrief || j.Payload == nil:
	case form == formSubmitted:
		o.num("payload_bytes", int64(len(j.Payload)))
	default:
		o.json("payload", j.Payload)
	}
	o.text("key", j.Key)
	o.str("state", j.State.String())
	o.num("priority", int64(j.Priority))
	o.num("attempt", int64(j.Attempt))
	o.num("max_attempts", int64(j.MaxAttempts))
	o.time("run_at", j.RunAt)
	o.time("created_at", j.CreatedAt)
	o.time("started_at", j.StartedAt)
	o.time("finished_at", j.FinishedAt)
	if form == formWhole || form == formBrief {
		o.text("submitter", j.Owner)
	}
	if (form == formWhole || form == formClaimed) && j.Result != nil {
		o.json("result", j.Result)
	}
	if form != formSubmitted {
		o.text("error", j.Error)
	}
	if form == formWhole && len(j.Errors) > 0 {
		o.errors(j.Errors)
	}
	if form == formWhole || form == formClaimed {
		o.text("traceparent", j.Traceparent)
	}
	o.flag("cancel_requested", j.CancelRequested)
	o.text("replayed_as", j.ReplayedAs)
	if d := j.Dedup; d != nil {
		o.name("dedup")
		o.open()
		o.str("strategy", d.Strategy.String())
		o.text("key", d.Key)
		o.num("ttl_ms", d.TTL.Milliseconds())
		if d.RescheduleOnce {
			o.str("if_deduplicated", "reschedule_once")
		}
		o.close()
	}
	if l := j.Lease; l != nil {
		o.name("lease")
		o.open()
		o.str("worker", l.Worker)
		if form == formClaimed {
			o.str("token", l.Token)
		}
		o.num("expires_in_ms", l.ExpiresIn.Milliseconds())
		o.close()
	}
	if len(j.WALLocations) > 0 {
		o.name("wal_locations")
		o.open()
		for _, l := range j.WALLocations {
			o.key(l.Database)
			o.b = api.AppendJSONString(o.b, l.LSN.String())
		}
		o.close()
	}
}

// errors appends the errors of attempts.
func (o *jsonObject) errors(all []jobs.AttemptError) {
	o.name("errors")
	o.b = append(o.b, '[')
	for i := range all {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.open()
		o.num("attempt", int64(all[i].Attempt))
		o.time("at", all[i].At)
		o.str("worker", all[i].Worker)
		o.str("error", all[i].Text)
		o.close()
	}
	o.b = append(o.b, ']')
}

// jobAnswer answers with a single job.
func jobAnswer(w *httpd.Response, status int, j *jobs.Job, form jobForm) {
	w.JSON(status)
	w.Body = appendJob(w.Body, j, form)
}

func appendJob(dst []byte, j *jobs.Job, form jobForm) []byte {
	o := jsonObject{b: dst}
	o.open()
	o.job(j, form)
	o.close()
	return o.b
}

// outcomeJSON is the answer to a submission.
func outcomeJSON(dst []byte, out *jobs.Outcome, form jobForm) []byte {
	o := jsonObject{b: dst}
	o.open()
	o.job(&out.Job, form)
	o.flag("deduplicated", out.Deduplicated)
	o.flag("existing", out.Existing)
	o.close()
	return o.b
}

// jobsJSON appends an array of jobs as a member.
func (o *jsonObject) jobs(name string, js []jobs.Job, form jobForm) {
	o.name(name)
	o.b = append(o.b, '[')
	for i := range js {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.b = appendJob(o.b, &js[i], form)
	}
	o.b = append(o.b, ']')
}

// writePage answers with a page of a list. write appends one item as an object.
func writePage[T any](w *httpd.Response, name string, items []T, cursor string, write func(*jsonObject, *T)) {
	w.JSON(200)
	o := jsonObject{b: w.Body}
	o.open()
	o.name(name)
	o.b = append(o.b, '[')
	for i := range items {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		write(&o, &items[i])
	}
	o.b, o.comma = append(o.b, ']'), true
	o.str("cursor", cursor)
	o.close()
	w.Body = o.b
}
