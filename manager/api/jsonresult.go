package api

import (
	"encoding/base64"
	"strconv"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

// AppendJSON appends {status, headers, body}, with the body in base64.
func (r *Result) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"status":`...)
	dst = strconv.AppendInt(dst, int64(r.Status), 10)
	dst = append(dst, `,"headers":[`...)
	for i := range r.Headers {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '[')
		dst = AppendJSONString(dst, r.Headers[i].Name)
		dst = append(dst, ',')
		dst = AppendJSONString(dst, r.Headers[i].Value)
		dst = append(dst, ']')
	}
	dst = append(dst, `],"body":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, r.Body)
	dst = append(dst, '"')
	if r.BodyOmitted {
		dst = append(dst, `,"body_omitted":true`...)
	}
	return append(dst, '}')
}

// ParseJSON reads {status, headers, body} strictly. It does not validate the
// fields' values. The error is a *FieldError.
func (r *Result) ParseJSON(b []byte) error {
	if err := CheckJSON(b, requestDepth); err != nil {
		return err
	}
	return r.parseJSON(gjson.ParseBytes(b))
}

func (r *Result) parseJSON(result gjson.Result) error {
	*r = Result{}
	return Members(fieldResult, result, func(name string, v gjson.Result) error {
		switch name {
		case "status":
			n, ok := wholeNumber(v)
			if !ok || n < 100 || n > MaxStatus {
				return &FieldError{fieldStatus, shorten(v.Raw), allowedStatus}
			}
			r.Status = int(n)
		case "headers":
			return r.parseJSONHeaders(v)
		case "body":
			s, err := StringField(fieldBody, v)
			if err != nil {
				return err
			}
			if r.Body, err = base64.StdEncoding.Strict().DecodeString(s); err != nil {
				return &FieldError{fieldBody, shorten(s), "must be base64 with padding"}
			}
		case "body_omitted":
			if v.Type != gjson.True && v.Type != gjson.False {
				return &FieldError{fieldBodyOmitted, shorten(v.Raw), "must be true or false"}
			}
			r.BodyOmitted = v.Bool()
		default:
			return UnknownField(fieldResult + "." + name)
		}
		return nil
	})
}

// parseJSONHeaders reads the array of [name, value] in the field headers.
func (r *Result) parseJSONHeaders(v gjson.Result) error {
	const allowed = "must be an array of [name, value]"
	if !v.IsArray() {
		return &FieldError{fieldHeaders, "", allowed}
	}
	var err error
	v.ForEach(func(_, pair gjson.Result) bool {
		h := Header{}
		n := 0
		if pair.IsArray() {
			pair.ForEach(func(_, item gjson.Result) bool {
				n++
				if item.Type != gjson.String || n > 2 {
					n = 3
					return false
				}
				if n == 1 {
					h.Name = item.String()
				} else {
					h.Value = item.String()
				}
				return true
			})
		}
		switch {
		case n != 2:
			err = &FieldError{fieldHeaders, shorten(pair.Raw), allowed}
		case len(r.Headers) == MaxResultHeaders:
			err = &FieldError{fieldHeaders, "", allowedHeaders}
		case !utf8.ValidString(h.Value):
			err = &FieldError{fieldHeaders, shorten(h.Name), "header values must be UTF-8 in JSON; the raw form takes any bytes"}
		default:
			r.Headers = append(r.Headers, h)
		}
		return err == nil
	})
	return err
}
