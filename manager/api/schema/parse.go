package schema

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
)

// MaxDepth bounds the nesting of a request. It is far above that of the values in it, so that what is said of a value that
// is too deep names its field.
const MaxDepth = 4 * api.MaxJSONDepth

// Parse reads a request strictly into what to points to: it refuses a member that is unknown, given twice or of another
// type. A body without bytes is an empty object. without are members of the struct that this call does not have. The error
// is an *api.FieldError or an *EmptyError, which names the member by its path; that of an element of an array begins at the
// element.
func Parse(body []byte, to any, without ...string) error {
	if len(body) == 0 {
		return nil
	}
	v, err := Read(body)
	if err != nil {
		return err
	}
	return v.Parse(to, without...)
}

// Value is a value of a request that is parsed later, by itself.
type Value struct{ v gjson.Result }

// Read returns a whole body, which must be one JSON value that is nested at most MaxDepth deep. The error is an
// *api.FieldError.
func Read(body []byte) (Value, error) {
	if err := api.CheckJSON(body, MaxDepth); err != nil {
		return Value{}, err
	}
	return Value{gjson.ParseBytes(body)}, nil
}

// Has reports whether the value is an object with this member.
func (v Value) Has(name string) bool { return v.v.Get(name).Exists() }

// Parse is the function Parse for a value.
func (v Value) Parse(to any, without ...string) error {
	p := parser{without: without}
	return p.object("", v.v, reflect.ValueOf(to).Elem())
}

// Unmarshal reads an answer into what to points to. Unknown members are left out, so that a newer manager may have more. The
// error is an *api.FieldError.
func Unmarshal(b []byte, to any) error {
	if err := api.CheckJSON(b, MaxDepth); err != nil {
		return err
	}
	p := parser{lenient: true}
	return p.object("", gjson.ParseBytes(b), reflect.ValueOf(to).Elem())
}

// EmptyError is the error for an empty text where a caller counts on the effect of one.
type EmptyError struct {
	Field   string // its path
	Allowed string
}

func (e *EmptyError) Error() string {
	return "field " + e.Field + `: "" is not allowed; allowed: ` + e.Allowed
}

// Problem returns the HTTP answer: 400.
func (e *EmptyError) Problem() api.Problem {
	return api.Problem{Status: 400, Code: api.CodeInvalidRequest, Title: "Invalid request", Detail: e.Error()}
}

type parser struct {
	lenient bool
	without []string // of the outermost object
}

// object reads the object at a path, "" for the whole body.
func (p *parser) object(path string, v gjson.Result, to reflect.Value) error {
	prefix := ""
	if path != "" {
		prefix = path + "."
	}
	return p.each(path, v, func(name string, v gjson.Result) error {
		m, field := find(to, name)
		if m == nil || path == "" && slices.Contains(p.without, name) {
			if p.lenient {
				return nil
			}
			return &api.FieldError{Field: clip(prefix + name), Allowed: "unknown field"}
		}
		if t := field.Type(); v.Type == gjson.Null && t != rawType && t != bytesType && t.Kind() != reflect.Interface {
			return nil
		}
		return p.value(prefix+name, v, field, m)
	})
}

// each calls read for each member of an object.
func (p *parser) each(path string, v gjson.Result, read func(name string, v gjson.Result) error) error {
	if !p.lenient {
		return eachMember(path, v, read)
	}
	var err error
	v.ForEach(func(k, v gjson.Result) bool {
		err = read(k.String(), v)
		return err == nil
	})
	return err
}

// find returns the member with a name and its field, nil if there is none.
func find(in reflect.Value, name string) (*member, reflect.Value) {
	all := members(in.Type())
	for i := range all {
		m := &all[i]
		if m.inline {
			if inner, field := find(in.Field(m.index), name); inner != nil {
				return inner, field
			}
		} else if m.name == name {
			return m, in.Field(m.index)
		}
	}
	return nil, reflect.Value{}
}

// value reads the value at a path.
func (p *parser) value(path string, v gjson.Result, to reflect.Value, m *member) error {
	wrong := func(text string) error {
		return &api.FieldError{Field: path, Value: clip(v.Raw), Allowed: cmp.Or(m.wrong, text)}
	}
	switch to.Type() {
	case durationType:
		if m.seconds {
			to.SetInt(int64(math.Round(v.Num * float64(time.Second))))
			return nil
		}
		n, ok := whole(v)
		if !ok || m.none && n < 0 {
			return wrong("must be a whole number of milliseconds")
		}
		if to.SetInt(int64(Duration(n))); m.none && n == 0 {
			to.SetInt(-1)
		}
		return p.positive(path, v, to, m)
	case timeType:
		s, err := stringField(path, v)
		if err != nil {
			return err
		}
		at, err := api.ParseTime(s)
		if err != nil {
			return &api.FieldError{Field: path, Value: clip(s), Allowed: "must be a time such as 2026-01-02T15:04:05Z"}
		}
		to.Set(reflect.ValueOf(at))
		return nil
	case rawType:
		to.SetBytes([]byte(v.Raw))
		return nil
	case valueType:
		to.Addr().Interface().(*Value).v = v
		return nil
	case bytesType:
		s, err := stringField(path, v)
		if err != nil {
			return err
		}
		b, err := base64.StdEncoding.AppendDecode(make([]byte, 0, len(s)/4*3), []byte(s))
		if err != nil {
			return &api.FieldError{Field: path, Value: clip(s), Allowed: cmp.Or(m.wrong, "must be base64 of the bytes, with padding")}
		}
		to.SetBytes(b)
		return nil
	}
	switch to.Kind() {
	case reflect.String:
		s, err := p.string(path, v, m)
		to.SetString(s)
		return err
	case reflect.Bool:
		if v.Type != gjson.True && v.Type != gjson.False {
			return wrong("must be true or false")
		}
		to.SetBool(v.Bool())
		return nil
	case reflect.Int, reflect.Int64:
		n, ok := whole(v)
		if !ok {
			return wrong("must be a whole number")
		}
		to.SetInt(n)
		return p.positive(path, v, to, m)
	case reflect.Uint8:
		s, err := stringField(path, v)
		if err != nil {
			return err
		}
		n, ok := parseName(to.Type(), s)
		if !ok {
			return &api.FieldError{Field: path, Value: clip(s), Allowed: m.wrong}
		}
		to.SetUint(uint64(n))
		return nil
	case reflect.Uint64:
		n, ok := whole(v)
		if !ok || n < 0 {
			return wrong("must be a whole number, at least 0")
		}
		to.SetUint(uint64(n))
		return p.positive(path, v, to, m)
	case reflect.Interface:
		to.Set(reflect.ValueOf(json.RawMessage(v.Raw)))
		return nil
	case reflect.Pointer:
		to.Set(reflect.New(to.Type().Elem()))
		return p.value(path, v, to.Elem(), m)
	case reflect.Slice:
		return p.array(path, v, to, m)
	case reflect.Map:
		return p.texts(path, v, to, m)
	case reflect.Struct:
		if to.Type() == headerType {
			return p.header(path, v, to.Addr().Interface().(*api.Header), m)
		}
		return p.object(path, v, to)
	}
	panic("schema: no JSON for " + to.Type().String())
}

// header reads [name, value].
func (p *parser) header(path string, v gjson.Result, to *api.Header, m *member) error {
	var pair [2]gjson.Result
	n := 0
	v.ForEach(func(_, e gjson.Result) bool {
		if n < 2 {
			pair[n] = e
		}
		n++
		return n <= 2
	})
	if !v.IsArray() || n != 2 {
		return &api.FieldError{Field: path, Value: clip(v.Raw), Allowed: cmp.Or(m.wrong, "must be an array of 2")}
	}
	var err error
	if to.Name, err = p.string(path, pair[0], m); err == nil {
		to.Value, err = p.string(path, pair[1], m)
	}
	return err
}

// texts reads an object of any names.
func (p *parser) texts(path string, v gjson.Result, to reflect.Value, m *member) error {
	to.Set(reflect.MakeMap(to.Type()))
	err := p.each("", v, func(name string, v gjson.Result) error {
		one := reflect.New(to.Type().Elem()).Elem()
		err := p.value(path+"."+clip(name), v, one, m)
		to.SetMapIndex(reflect.ValueOf(name), one)
		return err
	})
	if f, ok := err.(*api.FieldError); ok && f.Field == "body" {
		f.Field = path
	}
	return err
}

func (p *parser) string(path string, v gjson.Result, m *member) (string, error) {
	s, err := stringField(path, v)
	if err == nil && m.text {
		var ok bool
		if s, ok = text(v); !ok {
			err = &api.FieldError{Field: path, Value: clip(s), Allowed: "must be Unicode text: UTF-8, without half a surrogate pair"}
		}
	}
	switch {
	case err != nil || p.lenient:
		return s, err
	case s == "" && m.zero != "":
		return "", &EmptyError{path, m.zero}
	case m.enum != nil && !slices.Contains(m.enum, s):
		return "", &api.FieldError{Field: path, Value: clip(s), Allowed: "must be " + oneOf(m.enum)}
	}
	return s, nil
}

// positive refuses a number from 0 down where 0 would mean that none was sent.
func (p *parser) positive(path string, v gjson.Result, to reflect.Value, m *member) error {
	if m.zero == "" || p.lenient || !to.IsZero() && (!to.CanInt() || to.Int() > 0) {
		return nil
	}
	return &api.FieldError{Field: path, Value: clip(v.Raw), Allowed: m.zero}
}

func (p *parser) array(path string, v gjson.Result, to reflect.Value, m *member) error {
	elem := to.Type().Elem().Kind()
	if !v.IsArray() {
		what := "objects"
		if elem == reflect.String {
			what = "strings"
		}
		return &api.FieldError{Field: path, Value: clip(v.Raw), Allowed: cmp.Or(m.wrong, "must be an array of "+what)}
	}
	to.Set(reflect.MakeSlice(to.Type(), 0, 0))
	var err error
	v.ForEach(func(_, e gjson.Result) bool {
		n := to.Len()
		to.Grow(1)
		to.SetLen(n + 1)
		if elem == reflect.Struct && e.IsObject() && to.Type().Elem() != valueType {
			err = p.object("", e, to.Index(n))
		} else {
			err = p.value(path, e, to.Index(n), m)
		}
		return err == nil && (m.max == 0 || n < m.max)
	})
	return err
}

// Duration is the duration of some of the API's milliseconds, the longest one if they are more.
func Duration(ms int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Millisecond)
	return time.Duration(max(-most, min(ms, most))) * time.Millisecond
}

// oneOf lists the texts of an enum that are not empty.
func oneOf(enum []string) string {
	named := slices.DeleteFunc(slices.Clone(enum), func(s string) bool { return s == "" })
	last := len(named) - 1
	if last == 0 {
		return named[0]
	}
	return strings.Join(named[:last], ", ") + " or " + named[last]
}

// clip shortens what a caller sent, for errors, to 64 bytes and a mark.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "..."
	}
	return s
}
