package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// maxRequestBody is the longest body of a payment, in bytes.
const maxRequestBody = 1 << 20

// service is the payments API over one count of executions.
type service struct {
	ledger *executions
}

func newService() *service { return &service{ledger: newExecutions(maxKeys)} }

func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /payments", s.pay)
	mux.HandleFunc("POST /payments/{account}", s.pay)
	// Enough for the libraries of a well-known payment service (examples/stripe).
	mux.HandleFunc("POST /v1/payment_intents", s.pay)
	mux.HandleFunc("GET /executions", s.executions)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		io.WriteString(w, "ok\n")
	})
	return mux
}

// payment is the answer to a payment that was executed.
type payment struct {
	Execution int64           `json:"execution"`
	ID        string          `json:"id"`
	Amount    json.RawMessage `json:"amount,omitempty"`
	Currency  json.RawMessage `json:"currency,omitempty"`
	Padding   string          `json:"padding,omitempty"`
}

func (s *service) pay(w http.ResponseWriter, r *http.Request) {
	trouble, err := parseTrouble(r.Header)
	if err != nil {
		writeProblem(w, http.StatusBadRequest, err.Error())
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequestBody))
	if err != nil {
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			writeProblem(w, http.StatusRequestEntityTooLarge,
				fmt.Sprintf("the body is larger than %d bytes", tooLarge.Limit))
			return
		}
		writeProblem(w, http.StatusBadRequest, "the body could not be read to its end")
		return
	}
	var answer payment
	decode := decodeObject
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err == nil && media == formType && strings.HasPrefix(r.URL.Path, "/v1/") {
		decode = decodeForm
	}
	if err := decode(body, &answer); err != nil {
		writeProblem(w, http.StatusBadRequest, err.Error())
		return
	}

	if trouble.drop == dropBefore {
		trouble.work(r)
		// Closes the connection without an answer.
		panic(http.ErrAbortHandler)
	}
	// The work counts from its start: if the caller leaves during the work, it was executed.
	answer.Execution = s.ledger.add(r.Header.Get("Idempotency-Key"))
	answer.ID = "pay_" + strconv.FormatInt(answer.Execution, 10)
	trouble.work(r)
	if trouble.drop == dropAfter {
		panic(http.ErrAbortHandler)
	}
	writeJSON(w, "application/json", trouble.status, answer.encode(trouble.bodyBytes))
}

// decodeObject reads amount and currency from a body that must be one JSON object; it ignores other fields.
func decodeObject(body []byte, p *payment) error {
	if trimmed := bytes.TrimSpace(body); len(trimmed) == 0 || trimmed[0] != '{' {
		return errors.New("the body is not a JSON object, such as {\"amount\": 100}")
	}
	var fields struct {
		Amount   json.RawMessage `json:"amount"`
		Currency json.RawMessage `json:"currency"`
	}
	if err := json.Unmarshal(body, &fields); err != nil {
		return fmt.Errorf("the body is not valid JSON: %w", err)
	}
	p.Amount, p.Currency = fields.Amount, fields.Currency
	return nil
}

const formType = "application/x-www-form-urlencoded"

// decodeForm is decodeObject for an HTML form.
func decodeForm(body []byte, p *payment) error {
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return fmt.Errorf("the body is not a valid form: %w", err)
	}
	if amount, err := strconv.ParseInt(form.Get("amount"), 10, 64); err == nil {
		p.Amount = strconv.AppendInt(nil, amount, 10)
	}
	if form.Has("currency") {
		p.Currency = mustMarshal(form.Get("currency"))
	}
	return nil
}

// encode returns p as JSON, padded to size bytes when it is shorter.
func (p payment) encode(size int) []byte {
	b := mustMarshal(p)
	const overhead = len(`,"padding":""`)
	if pad := size - len(b) - overhead; pad > 0 {
		p.Padding = string(bytes.Repeat([]byte{'x'}, pad))
		return mustMarshal(p)
	}
	// The missing bytes may be too few for a field, so the padding is white space.
	if pad := size - len(b); pad > 0 {
		return append(b, bytes.Repeat([]byte{'\n'}, pad)...)
	}
	return b
}

func (s *service) executions(w http.ResponseWriter, r *http.Request) {
	counts := s.ledger.counts
	if query := r.URL.Query(); query.Has("key") {
		counts = func() executionCounts { return s.ledger.countsOf(query.Get("key")) }
	}
	writeJSON(w, "application/json", http.StatusOK, mustMarshal(counts()))
}

// problem is an RFC 9457 problem. The title is sufficient, so the type is the default, about:blank.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

func writeProblem(w http.ResponseWriter, status int, detail string) {
	writeJSON(w, "application/problem+json", status,
		mustMarshal(problem{Title: http.StatusText(status), Status: status, Detail: detail}))
}

func writeJSON(w http.ResponseWriter, contentType string, status int, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	if status == http.StatusNoContent || status == http.StatusNotModified {
		// Answers with these statuses have no body.
		w.Header().Del("Content-Type")
		w.Header().Del("Content-Length")
		body = nil
	}
	w.WriteHeader(status)
	w.Write(body) // an error means that the caller has disconnected
}

// mustMarshal encodes types of this package, which can always be encoded.
func mustMarshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("payments: encoding %T: %v", v, err))
	}
	return b
}

// work waits for the time that the caller asked for, or until the caller disconnects.
func (t trouble) work(r *http.Request) {
	if t.delay == 0 {
		return
	}
	timer := time.NewTimer(t.delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.Context().Done():
	}
}
