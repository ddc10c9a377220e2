package server

import (
	"errors"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

var answerFields = [...]string{"status", "headers", "body"}

// parseResolution reads {"as", "status", "headers", "body", "ttl_ms"} strictly. The answer
// has the members of an api.Result; without a body only the status is recorded, so that
// duplicates learn that the request was executed and not with what answer. Errors
// are *api.FieldError.
func parseResolution(b []byte) (ledger.Resolution, error) {
	var res ledger.Resolution
	given := map[string]string{} // the members of the answer, as they were sent
	err := api.ParseObject(b, api.MaxJSONDepth, func(name string, v gjson.Result) (err error) {
		switch name {
		case "as":
			var as string
			if as, err = api.StringField(name, v); err != nil {
				return err
			}
			state, ok := api.ParseState(as)
			if !ok || !state.Terminal() && state != api.StateReleased {
				return &api.FieldError{Field: name, Value: httpd.Clip(as), Allowed: "must be committed, rejected or released"}
			}
			res.As = state
		case "ttl_ms":
			res.TTL, err = api.TTLField(name, v)
		case "status", "headers", "body":
			given[name] = v.Raw
		default:
			err = api.UnknownField(name)
		}
		return err
	})
	switch {
	case err != nil:
		return res, err
	case res.As == api.StateNone:
		return res, &api.FieldError{Field: "as", Allowed: "is missing: must be committed, rejected or released"}
	case res.As == api.StateReleased:
		for _, name := range answerFields {
			if _, ok := given[name]; ok {
				return res, &api.FieldError{Field: name, Allowed: "does not go with as released: nothing ran, so there is no answer"}
			}
		}
		if res.TTL != 0 {
			return res, &api.FieldError{Field: "ttl_ms", Allowed: "does not go with as released: nothing is remembered"}
		}
		return res, nil
	}
	result, err := parseAnswer(given)
	if err != nil {
		return res, err
	}
	res.Result = result.AppendRaw(nil)
	return res, nil
}

// parseAnswer reads the members of a result.
func parseAnswer(given map[string]string) (api.Result, error) {
	var r api.Result
	const allowedStatus = "must be 200 to 599" // a status below is of no final answer
	if _, ok := given["status"]; !ok {
		return r, &api.FieldError{Field: "status", Allowed: "is missing: " + allowedStatus}
	}
	_, hasBody := given["body"]
	if _, hasHeaders := given["headers"]; hasHeaders && !hasBody {
		return r, &api.FieldError{Field: "headers", Allowed: "need a body, which may be empty"}
	}
	var members []string
	for _, name := range answerFields {
		if raw, ok := given[name]; ok {
			members = append(members, `"`+name+`":`+raw)
		}
	}
	err := r.ParseJSON([]byte("{" + strings.Join(members, ",") + "}"))
	r.BodyOmitted = !hasBody
	if err == nil {
		err = r.Validate()
	}
	if err == nil && r.Status < 200 {
		err = &api.FieldError{Field: "status", Value: strconv.Itoa(r.Status)}
	}
	var field *api.FieldError
	if errors.As(err, &field) {
		named := *field
		named.Field = strings.TrimPrefix(named.Field, "result.")
		if named.Field == "status" {
			named.Allowed = allowedStatus
		}
		return r, &named
	}
	return r, err
}
