package server

import (
	"errors"
	"strconv"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// parseResolution reads an operator's decision. Without a body only the status is recorded, so that duplicates learn that the
// request was executed and not with what answer.
func parseResolution(b []byte) (res ledger.Resolution, err error) {
	var in schema.Resolution
	body, err := schema.Read(b)
	if err == nil {
		err = body.Parse(&in)
	}
	res.As, _ = api.ParseState(string(in.As)) // the schema has the names
	res.TTL = in.TTL
	switch {
	case err != nil:
		return res, err
	case in.As == "":
		return res, &api.FieldError{Field: "as", Allowed: "is missing: must be committed, rejected or released"}
	case in.TTL < 0 || in.TTL > api.MaxTTL:
		most := strconv.FormatInt(api.MaxTTL.Milliseconds(), 10)
		return res, &api.FieldError{Field: "ttl_ms", Value: strconv.FormatInt(in.TTL.Milliseconds(), 10), Allowed: "must be a whole number from 1 to " + most}
	case res.As == api.StateReleased:
		return res, withoutAnswer(&in)
	}
	result, err := answerOf(&in)
	res.Result = result.AppendRaw(nil)
	return res, err
}

// withoutAnswer refuses what does not go with as released.
func withoutAnswer(in *schema.Resolution) error {
	for _, f := range []struct {
		name  string
		given bool
	}{{"status", in.Status != 0}, {"headers", in.Headers != nil}, {"body", in.Body != nil}} {
		if f.given {
			return &api.FieldError{Field: f.name, Allowed: "does not go with as released: nothing ran, so there is no answer"}
		}
	}
	if in.TTL != 0 {
		return &api.FieldError{Field: "ttl_ms", Allowed: "does not go with as released: nothing is remembered"}
	}
	return nil
}

// answerOf is the answer that duplicates get.
func answerOf(in *schema.Resolution) (r api.Result, err error) {
	const allowedStatus = "must be 200 to 599" // a status below is of no final answer
	switch {
	case in.Status == 0:
		return r, &api.FieldError{Field: "status", Allowed: "is missing: " + allowedStatus}
	case in.Status < 200 || in.Status > api.MaxStatus:
		return r, &api.FieldError{Field: "status", Value: strconv.Itoa(in.Status), Allowed: allowedStatus}
	case in.Headers != nil && in.Body == nil:
		return r, &api.FieldError{Field: "headers", Allowed: "need a body, which may be empty"}
	}
	r = api.Result{Status: in.Status, Headers: in.Headers, Body: in.Body, BodyOmitted: in.Body == nil}
	err = r.Validate()
	var field *api.FieldError
	if errors.As(err, &field) {
		field.Field = strings.TrimPrefix(field.Field, "result.")
	}
	return r, err
}
