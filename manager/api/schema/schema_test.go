package schema

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

type inner struct {
	A string        `json:"a" zero:"a value"`
	D time.Duration `json:"d_ms,omitempty" zero:"must be at least 5"`
}

type embedded struct {
	E string `json:"e,omitempty" enum:"x,y"`
}

type sample struct {
	Text   string            `json:"text" text:"unicode"`
	Number int               `json:"number" wrong:"must be a digit"`
	Yes    bool              `json:"yes,omitempty"`
	Raw    json.RawMessage   `json:"raw,omitempty"`
	Any    any               `json:"any,omitempty"`
	Bytes  []byte            `json:"bytes"`
	At     time.Time         `json:"at,omitzero"`
	Inner  *inner            `json:"inner,omitempty"`
	List   []inner           `json:"list" max:"2"`
	Texts  []string          `json:"texts"`
	Map    map[string]string `json:"map"`
	Epoch  uint64            `json:"epoch,omitempty"`
	Spans  time.Duration     `json:"seconds" unit:"s"`
	Whole  inner             `json:"whole" whole:"true"`
	Own    string            `json:"-"`
	embedded
}

func TestParseNamesWhatIsWrong(t *testing.T) {
	for body, want := range map[string]string{
		`[]`:                               `body: must be a JSON object`,
		`{}{}`:                             `body: must be one valid JSON value`,
		`{"text":1}`:                       `text: "1": must be a string`,
		`{"text":"\ud800"}`:                `text: "\ufffd": must be Unicode text: UTF-8, without half a surrogate pair`,
		`{"text":"","text":""}`:            `text: given twice`,
		`{"other":1}`:                      `other: unknown field`,
		`{"Own":""}`:                       `Own: unknown field`,
		`{"embedded":{}}`:                  `embedded: unknown field`,
		`{"without":1}`:                    `without: unknown field`,
		`{"yes":1}`:                        `yes: "1": must be true or false`,
		`{"number":1.5}`:                   `number: "1.5": must be a digit`,
		`{"bytes":null}`:                   `bytes: "null": must be a string`,
		`{"bytes":"?"}`:                    `bytes: "?": must be base64 of the bytes, with padding`,
		`{"at":"now"}`:                     `at: "now": must be a time such as 2026-01-02T15:04:05Z`,
		`{"inner":7}`:                      `inner: must be a JSON object`,
		`{"inner":{"a":""}}`:               `field inner.a: "" is not allowed; allowed: a value`,
		`{"inner":{"d_ms":0.0}}`:           `inner.d_ms: "0.0": must be at least 5`,
		`{"inner":{"d_ms":"5"}}`:           `inner.d_ms: "\"5\"": must be a whole number of milliseconds`,
		`{"inner":{"x":1}}`:                `inner.x: unknown field`,
		`{"inner":{"a":"b","a":"c"}}`:      `inner.a: given twice`,
		`{"list":{}}`:                      `list: "{}": must be an array of objects`,
		`{"list":[7]}`:                     `list: must be a JSON object`,
		`{"list":[{"x":1}]}`:               `x: unknown field`,
		`{"texts":[null]}`:                 `texts: "null": must be a string`,
		`{"texts":"a"}`:                    `texts: "\"a\"": must be an array of strings`,
		`{"map":[]}`:                       `map: must be a JSON object`,
		`{"map":{"a":1}}`:                  `map.a: "1": must be a string`,
		`{"epoch":-1}`:                     `epoch: "-1": must be a whole number, at least 0`,
		`{"e":"z"}`:                        `e: "z": must be x or y`,
		`{"a":7}`:                          `a: "7": must be a string`,
		`{"raw":` + deep(MaxDepth) + `}`:   `body: must be JSON nested at most 256 deep`,
		`{"text":"` + long + `","yes":[]}`: `yes: "[]": must be true or false`,
		`{"number":"` + long + `"}`:        `number: "\"` + long[:63] + `...": must be a digit`,
	} {
		var s struct {
			sample
			Without int `json:"without"`
		}
		err := Parse([]byte(body), &s, "without")
		if err == nil || err.Error() != want {
			t.Errorf("%.80s: %v, want %s", body, err, want)
		}
		if p, ok := err.(interface{ Problem() api.Problem }); !ok || p.Problem().Status != 400 {
			t.Errorf("%.80s: %T is no problem", body, err)
		}
	}
}

var long = strings.Repeat("l", 100)

func deep(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

func TestAppendAndParseAreInverse(t *testing.T) {
	in := sample{
		Text: "<\u00e9\">", Number: -3, Yes: true, Raw: json.RawMessage(`{"a":[1]}`), Any: json.RawMessage(`null`), Bytes: []byte("b"),
		At: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Inner: &inner{A: "a", D: 1500 * time.Microsecond}, List: []inner{{A: "b"}}, Texts: []string{"", "t"},
		Map: map[string]string{"b": "1", "a": "2"}, Epoch: 1 << 62, Spans: 1500 * time.Millisecond, Whole: inner{A: "w"}, embedded: embedded{E: "x"},
	}
	const want = `{"text":"<é\">","number":-3,"yes":true,"raw":{"a":[1]},"any":null,"bytes":"Yg==","at":"2026-01-02T03:04:05.000000006Z",` +
		`"inner":{"a":"a","d_ms":2},"list":[{"a":"b"}],"texts":["","t"],"map":{"a":"2","b":"1"},"epoch":4611686018427387904,"seconds":1.5,"a":"w","d_ms":0,"e":"x"}`
	text := Append(nil, &in)
	if string(text) != want {
		t.Fatalf("got  %s\nwant %s", text, want)
	}
	for name, read := range map[string]func([]byte, any) error{
		"Unmarshal": func(b []byte, to any) error { return Unmarshal(append([]byte(`{"new":[],`), b[1:]...), to) },
		"Parse":     func(b []byte, to any) error { return Parse([]byte(strings.Replace(string(b), `,"d_ms":0`, "", 1)), to) },
	} {
		var out sample
		err := read(text, &out)
		again := in
		again.Inner = &inner{A: "a", D: 2 * time.Millisecond}
		if err != nil || !reflect.DeepEqual(out, again) {
			t.Errorf("%s: %+v, %v; want %+v", name, out, err, again)
		}
	}
}

func TestWhatIsEmpty(t *testing.T) {
	if got := string(Append(nil, &sample{})); got != `{"text":"","number":0,"bytes":"","list":[],"texts":[],"map":{},"seconds":0,"a":"","d_ms":0}` {
		t.Error(got)
	}
	for _, body := range []string{``, `{}`, `{"text":null,"inner":null,"list":null,"map":null,"at":null,"e":null}`} {
		var s sample
		if err := Parse([]byte(body), &s); err != nil || !reflect.DeepEqual(s, sample{}) {
			t.Errorf("%s: %+v, %v", body, s, err)
		}
	}
	var s sample
	if err := Parse([]byte(`{"raw":null,"any":null,"list":[{},{},{},{"x":1}],"number":2.0}`), &s); err != nil || string(s.Raw) != "null" || s.Any == nil || len(s.List) != 3 || s.Number != 2 {
		t.Errorf("%+v, %v: want a null, one element more than the most, and 2", s, err)
	}
	if got := string(Append(nil, &sample{Raw: json.RawMessage("\"\xff\"")})); !strings.Contains(got, `"raw":"`+"\uFFFD"+`"`) {
		t.Error(got)
	}
}

func TestMillis(t *testing.T) {
	for d, want := range map[time.Duration]int64{0: 0, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, -time.Second: -1000, 1<<63 - 1: 9223372036855} {
		if got := Millis(d); got != want {
			t.Errorf("%d: %d, want %d", d, got, want)
		}
	}
	if Duration(1<<62) <= 0 || Duration(-1<<62) >= 0 || Duration(1500) != 1500*time.Millisecond {
		t.Error("a duration that is too long is not the longest one")
	}
}
