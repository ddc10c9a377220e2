package server

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// submit handles POST /v1/jobs.
func (h *jobHandlers) submit(r *httpd.Request, w *httpd.Response) {
	s, err := parseSubmission(r.Body)
	if err != nil {
		r.Error(w, err)
		return
	}
	p, err := h.queue.Prepare(s)
	if err != nil {
		r.Error(w, err)
		return
	}
	key, err := idempotencyKey(r)
	if err != nil {
		r.Error(w, err)
		return
	}
	var out jobs.Outcome
	if key == "" {
		if out, err = h.queue.EnqueuePrepared(r.Context(), p); err != nil {
			r.Error(w, err)
			return
		}
		w.JSON(submitStatus(&out))
		w.Body = outcomeJSON(w.Body, &out, formSubmitted)
		return
	}
	h.once(r, w, key, "POST:/v1/jobs", func(tx store.Tx) (answer, error) {
		var err error
		if out, err = h.queue.EnqueueTx(tx, p); err != nil {
			return answer{}, err
		}
		return answer{
			status: submitStatus(&out), job: out.Job.ID,
			body: outcomeJSON(nil, &out, formSubmitted), brief: outcomeJSON(nil, &out, formBrief),
		}, nil
	}, func() { h.queue.Committed(out) })
}

func submitStatus(out *jobs.Outcome) int {
	if out.Created() {
		return 202
	}
	return 200
}

// send handles POST /v1/events/{name}.
func (h *jobHandlers) send(r *httpd.Request, w *httpd.Response) {
	e, err := parseEvent(r.Body)
	if err != nil {
		r.Error(w, err)
		return
	}
	e.Name = r.Param(0)
	p, err := h.queue.PrepareEvent(e)
	if err != nil {
		r.Error(w, err)
		return
	}
	key, err := idempotencyKey(r)
	if err != nil {
		r.Error(w, err)
		return
	}
	var out jobs.EventOutcome
	h.once(r, w, key, "POST:/v1/events/"+e.Name, func(tx store.Tx) (answer, error) {
		var err error
		if out, err = h.queue.SendTx(tx, p); err != nil {
			return answer{}, err
		}
		a := answer{status: 202, body: eventJSON(nil, &out, true), brief: eventJSON(nil, &out, false)}
		if out.Deduplicated {
			a.status = 200
		}
		if len(out.IDs) > 0 {
			a.job = out.IDs[0]
		}
		return a, nil
	}, func() { h.queue.CommittedEvent(out) })
}

// answer is what a submission is answered with.
type answer struct {
	status int
	body   []byte
	// brief stands for body where the ledger keeps only smaller answers.
	brief []byte
	// job is the id under which the ledger's entry can be found.
	job string
}

// once runs do in a transaction and answers with what it returns. With an
// idempotency key the same transaction reserves the key, runs do and records
// the answer, so that there is either all of it or nothing: a retry, from
// wherever and whenever within the window, gets the recorded answer and do does
// not run again. A refusal by do is recorded as well, as a rejection.
//
// done is called when do's writes are known to have happened.
func (h *jobHandlers) once(r *httpd.Request, w *httpd.Response, key, scope string, do func(store.Tx) (answer, error), done func()) {
	var a answer
	if key == "" {
		err := h.store.Update(r.Context(), func(tx store.Tx) error {
			var err error
			a, err = do(tx)
			return err
		})
		if err != nil {
			r.Error(w, err)
			return
		}
		done()
		w.JSON(a.status)
		w.Body = append(w.Body, a.body...)
		return
	}

	reserve := &api.ReserveRequest{
		Key: key, Scope: scope + identity(r), Fingerprint: fingerprint(r.Body), Token: randomToken(),
	}
	var reply ledger.Reply
	var refused error
	err := h.ledger.Update(r.Context(), func(tx *ledger.Tx) error {
		a, refused = answer{}, nil
		var err error
		if reply, err = tx.Reserve(reserve); err != nil || reply.State != api.StateReserved {
			return err
		}
		a, refused = do(tx)
		record, contentType := tx.Commit, api.ContentTypeJSON
		if refused != nil {
			p := ProblemOf(refused)
			if p.Status >= 500 {
				return refused
			}
			a = answer{status: p.Status, body: p.AppendJSON(nil)}
			record, contentType = tx.Reject, api.ContentTypeProblem
		}
		finish := &api.FinishRequest{Key: key, Scope: reserve.Scope, Token: reserve.Token, Fingerprint: reserve.Fingerprint}
		finish.Result = api.Result{
			Status: a.status, Headers: []api.Header{{Name: "content-type", Value: contentType}}, Body: a.body,
		}
		f := ledger.NewFinish(finish)
		f.Ref = a.job
		err = record(f)
		if errors.Is(err, ledger.ErrTooLarge) && a.brief != nil {
			a.body, finish.Result.Body = a.brief, a.brief
			f.Result = ledger.NewFinish(finish).Result
			err = record(f)
		}
		return err
	})
	switch {
	case err != nil:
		r.Error(w, err)
	case reply.State == api.StateReserved:
		if refused != nil {
			r.Error(w, refused)
			return
		}
		done()
		w.JSON(a.status)
		w.Body = append(w.Body, a.body...)
	case reply.State.Terminal():
		replay(r, w, reply.Result)
	default:
		w.Problem(&api.Problem{
			Status: 409, Code: api.CodePending, Title: "Request pending", RetryAfterSeconds: httpd.RetrySoon,
			Detail: "the first attempt with this idempotency key is still running",
		})
	}
}

// replay answers with a recorded result.
func replay(r *httpd.Request, w *httpd.Response, raw []byte) {
	var result api.Result
	if err := result.ParseRaw(raw); err != nil {
		r.Error(w, err)
		return
	}
	if result.BodyOmitted {
		w.Problem(&api.Problem{
			Status: 410, Code: api.CodeAnswerNotRecorded, Title: "Answer not recorded",
			Detail: "the submission was accepted, but its answer was too large to keep",
		})
		return
	}
	w.JSON(result.Status)
	for _, hd := range result.Headers {
		if hd.Name == "content-type" {
			w.ContentType = hd.Value
		}
	}
	w.SetHeader(api.HeaderReplayed, "true")
	w.Body = append(w.Body, result.Body...)
}

// idempotencyKey reads the header, bare or as an RFC 8941 string; "" when there
// is none. One that is there but empty, repeated or not a key is refused, never
// taken for absent: a client that sends it counts on being protected.
func idempotencyKey(r *httpd.Request) (string, error) {
	n := r.HeaderCount(api.HeaderIdempotencyKey)
	if n == 0 {
		return "", nil
	}
	v := r.Header(api.HeaderIdempotencyKey)
	bad := &api.FieldError{Field: "key", Value: httpd.Clip(v), Allowed: "the header idempotency-key must be 1 to 255 bytes of visible ASCII, or that as a quoted string, and be sent once"}
	if n > 1 || v == "" {
		return "", bad
	}
	if v[0] == '"' {
		if len(v) < 2 || v[len(v)-1] != '"' {
			return "", bad
		}
		var b strings.Builder
		for i := 1; i < len(v)-1; i++ {
			switch c := v[i]; {
			case c == '\\' && i+1 < len(v)-1 && (v[i+1] == '"' || v[i+1] == '\\'):
				i++
				b.WriteByte(v[i])
			case c == '"' || c == '\\':
				return "", bad
			default:
				b.WriteByte(c)
			}
		}
		v = b.String()
	}
	if api.ValidateKey(v) != nil {
		return "", bad
	}
	return v, nil
}

// identity tells callers apart in the ledger's scope by a digest of their
// credentials, so that nobody gets the answer to somebody else's submission.
func identity(r *httpd.Request) string {
	credentials := r.Header("authorization")
	if credentials == "" {
		return ""
	}
	sum := sha256.Sum256([]byte("oncegate submission\x00" + credentials))
	return "#" + hex.EncodeToString(sum[:16])
}

// fingerprint digests a submission: its fields in the order of their names,
// without white space between tokens, and without the proposed id, which a
// retry may draw anew.
func fingerprint(body []byte) string {
	type member struct{ name, raw string }
	var members []member
	gjson.ParseBytes(body).ForEach(func(k, v gjson.Result) bool {
		if k.String() != "id" {
			members = append(members, member{k.String(), v.Raw})
		}
		return true
	})
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.name, b.name) })
	sum := sha256.New()
	var compact bytes.Buffer
	for _, m := range members {
		compact.Reset()
		compact.WriteString(m.name)
		compact.WriteByte(0)
		_ = json.Compact(&compact, []byte(m.raw)) // was parsed before: valid
		compact.WriteByte(0)
		sum.Write(compact.Bytes())
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil))
}

func randomToken() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: it ends the program instead
	return hex.EncodeToString(b[:])
}
