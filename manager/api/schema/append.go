package schema

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/oncegate/oncegate/manager/api"
)

// member is a member of an object.
type member struct {
	name, quoted                       string // quoted: with its colon
	index                              int
	omitZero, omitEmpty, inline, whole bool
	text, seconds                      bool
	none                               bool // a duration that is 0 in JSON is -1
	enum                               []string
	zero, wrong                        string
	max                                int
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	timeType     = reflect.TypeFor[time.Time]()
	rawType      = reflect.TypeFor[json.RawMessage]()
	bytesType    = reflect.TypeFor[[]byte]()
	valueType    = reflect.TypeFor[Value]()
	problemType  = reflect.TypeFor[api.Problem]()
	headerType   = reflect.TypeFor[api.Header]()
	stateType    = reflect.TypeFor[api.State]()
)

// parseName returns the value of a type of named numbers with a name.
func parseName(t reflect.Type, name string) (n uint8, ok bool) {
	if t == stateType {
		state, ok := api.ParseState(name)
		return uint8(state), ok
	}
	durability, ok := api.ParseDurability(name)
	return uint8(durability), ok
}

var shapes sync.Map // of []member, by reflect.Type

// members returns the members of a struct. Its tags are part of the program, so one that is wrong panics.
func members(t reflect.Type) []member {
	if known, ok := shapes.Load(t); ok {
		return known.([]member)
	}
	var all []member
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		m := member{
			name: name, quoted: `"` + name + `":`, index: i, inline: f.Anonymous || f.Tag.Get("whole") != "", whole: f.Tag.Get("whole") != "",
			omitZero: strings.HasPrefix(options, "omit"), omitEmpty: options == "omitempty",
			text: f.Tag.Get("text") != "", seconds: f.Tag.Get("unit") == "s", none: f.Tag.Get("none") == "0", zero: f.Tag.Get("zero"), wrong: f.Tag.Get("wrong"),
		}
		if enum, has := f.Tag.Lookup("enum"); has {
			m.enum = strings.Split(enum, ",")
		}
		if most := f.Tag.Get("max"); most != "" {
			var err error
			if m.max, err = strconv.Atoi(most); err != nil {
				panic(err)
			}
		}
		all = append(all, m)
	}
	known, _ := shapes.LoadOrStore(t, all)
	return known.([]member)
}

// Append appends what v points to as JSON. A list or map that is nil is empty, not null. An any must hold a
// json.RawMessage. Bytes of a json.RawMessage that are not UTF-8 become U+FFFD.
func Append(dst []byte, v any) []byte { return appendValue(dst, reflect.ValueOf(v).Elem(), &member{}) }

// marshal is the MarshalJSON of a request with a payload of any type. It puts the payload's JSON into the request first.
func marshal(request any, payload *any) ([]byte, error) {
	if *payload != nil {
		b, err := json.Marshal(*payload)
		if err != nil {
			return nil, err
		}
		*payload = json.RawMessage(b)
	}
	return Append(nil, request), nil
}

func appendValue(dst []byte, v reflect.Value, m *member) []byte {
	switch v.Type() {
	case durationType:
		if d := time.Duration(v.Int()); m.seconds {
			return strconv.AppendFloat(dst, d.Seconds(), 'f', -1, 64)
		} else if m.none {
			return strconv.AppendInt(dst, Millis(max(d, 0)), 10)
		} else {
			return strconv.AppendInt(dst, Millis(d), 10)
		}
	case timeType:
		dst = v.Addr().Interface().(*time.Time).UTC().AppendFormat(append(dst, '"'), time.RFC3339Nano)
		return append(dst, '"')
	case rawType:
		return appendRaw(dst, v.Bytes())
	case bytesType:
		return append(base64.StdEncoding.AppendEncode(append(dst, '"'), v.Bytes()), '"')
	case problemType:
		return v.Addr().Interface().(*api.Problem).AppendJSON(dst)
	}
	switch v.Kind() {
	case reflect.String:
		return api.AppendJSONString(dst, v.String())
	case reflect.Bool:
		return strconv.AppendBool(dst, v.Bool())
	case reflect.Int, reflect.Int64:
		return strconv.AppendInt(dst, v.Int(), 10)
	case reflect.Uint8:
		return api.AppendJSONString(dst, v.Interface().(fmt.Stringer).String())
	case reflect.Uint64:
		return strconv.AppendUint(dst, v.Uint(), 10)
	case reflect.Float64:
		return strconv.AppendFloat(dst, v.Float(), 'f', -1, 64)
	case reflect.Interface:
		return appendRaw(dst, v.Interface().(json.RawMessage))
	case reflect.Pointer:
		if v.IsNil() {
			return append(dst, "null"...)
		}
		return appendValue(dst, v.Elem(), m)
	case reflect.Slice:
		dst = append(dst, '[')
		for i := range v.Len() {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendValue(dst, v.Index(i), m)
		}
		return append(dst, ']')
	case reflect.Map:
		return appendMap(dst, v, m)
	case reflect.Struct:
		if v.Type() == headerType {
			h := v.Addr().Interface().(*api.Header)
			dst = append(api.AppendJSONString(append(dst, '['), h.Name), ',')
			return append(api.AppendJSONString(dst, h.Value), ']')
		}
		return append(appendMembers(append(dst, '{'), v, false), '}')
	}
	panic("schema: no JSON for " + v.Type().String())
}

// appendMembers appends those of a struct to an open object, whole: also those that are left out otherwise.
func appendMembers(dst []byte, v reflect.Value, whole bool) []byte {
	all := members(v.Type())
	for i := range all {
		m := &all[i]
		f := v.Field(m.index)
		if !whole && m.leftOut(f) {
			continue
		}
		if m.inline {
			dst = appendMembers(dst, f, m.whole)
			continue
		}
		if dst[len(dst)-1] != '{' {
			dst = append(dst, ',')
		}
		dst = appendValue(append(dst, m.quoted...), f, m)
	}
	return dst
}

// leftOut reports whether an object does not have the member, because of its value.
func (m *member) leftOut(v reflect.Value) bool {
	if k := v.Kind(); m.omitEmpty && (k == reflect.Slice || k == reflect.Map) {
		return v.Len() == 0
	}
	return m.omitZero && v.IsZero()
}

// appendMap appends a map with text for keys, in their order.
func appendMap(dst []byte, v reflect.Value, m *member) []byte {
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	dst = append(dst, '{')
	for i, k := range keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(api.AppendJSONString(dst, k.String()), ':')
		dst = appendValue(dst, v.MapIndex(k), m)
	}
	return append(dst, '}')
}

func appendRaw(dst, v []byte) []byte {
	if len(v) == 0 {
		return append(dst, "null"...)
	}
	if !utf8.Valid(v) {
		v = bytes.ToValidUTF8(v, []byte("\uFFFD"))
	}
	return append(dst, v...)
}

// Millis is a duration in the API's milliseconds. What is shorter than one does not become 0, which means a default.
func Millis(d time.Duration) int64 {
	if d <= 0 {
		return d.Milliseconds()
	}
	return int64((d-1)/time.Millisecond) + 1
}
