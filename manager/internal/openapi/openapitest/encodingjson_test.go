package openapitest

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api/schema"
)

// Programs write requests and answers with encoding/json, and read answers with it, as the client does. That package knows
// nothing of milliseconds: a type with a duration needs methods of its own.
func TestEncodingJSONReadsAndWritesTheSchema(t *testing.T) {
	types := map[reflect.Type]bool{ // of no call, or only a part of one
		reflect.TypeFor[schema.ListQuery](): true, reflect.TypeFor[schema.Rate](): true,
		reflect.TypeFor[schema.LogConfig](): true, reflect.TypeFor[schema.ScheduleSpec](): true,
	}
	for _, s := range shapes {
		for _, body := range append(s.answers, s.request) {
			if typ := reflect.TypeOf(body); typ != nil && typ.PkgPath() == reflect.TypeFor[schema.Job]().PkgPath() {
				types[typ] = true
			}
		}
	}
	// These have no name in the client's packages. What reads them calls schema.Unmarshal.
	for _, own := range []any{schema.LedgerReply{}, schema.LedgerStats{}, schema.Activity{}, schema.LogChange{}} {
		delete(types, reflect.TypeOf(own))
	}
	for typ := range types {
		in := reflect.New(typ)
		fill(in.Elem())
		text := schema.Append(nil, in.Interface())
		written, err := json.Marshal(in.Interface())
		if err != nil || !reflect.DeepEqual(tree(t, written), tree(t, text)) {
			t.Errorf("encoding/json writes %s as\n%s, %v; the API as\n%s", typ, written, err, text)
		}
		known, read := reflect.New(typ), reflect.New(typ)
		if err := schema.Unmarshal(text, known.Interface()); err != nil {
			t.Fatalf("%s: %v", typ, err)
		}
		if err := json.Unmarshal(text, read.Interface()); err != nil || !reflect.DeepEqual(read.Interface(), known.Interface()) {
			t.Errorf("encoding/json reads %s as\n%+v, %v; the API as\n%+v", typ, read, err, known)
		}
	}
}

func tree(t *testing.T, text []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// fill gives each field a value that is not its zero value.
func fill(v reflect.Value) {
	switch v.Interface().(type) {
	case time.Duration:
		v.SetInt(int64(90 * time.Second))
		return
	case time.Time:
		v.Set(reflect.ValueOf(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)))
		return
	case json.RawMessage:
		v.SetBytes([]byte(`{"a":1}`))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint64:
		v.SetUint(7)
	case reflect.Uint8:
		v.SetUint(1)
	case reflect.Float64:
		v.SetFloat(0.5)
	case reflect.Interface:
		v.Set(reflect.ValueOf(json.RawMessage(`{"a":1}`)))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		e := reflect.New(v.Type().Elem()).Elem()
		fill(e)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("k").Convert(v.Type().Key()), e)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && v.Type().Field(i).Tag.Get("json") != "-" {
				fill(v.Field(i))
			}
		}
	default:
		panic("no value for " + v.Type().String())
	}
}
