package dsn

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for in, want := range map[string]Config{
		"http://a:2379,http://b:2379,http://c:2379?prefix=/oncegate": {Endpoints: []string{"http://a:2379", "http://b:2379", "http://c:2379"}, Prefix: "/oncegate", Compact: 5 * time.Minute},
		"http://a":                        {Endpoints: []string{"http://a:2379"}, Prefix: "/oncegate", Compact: 5 * time.Minute},
		"http://u:p%40@[::1]:1/,http://b": {Endpoints: []string{"http://[::1]:1", "http://b:2379"}, Prefix: "/oncegate", User: "u", Password: "p@", Compact: 5 * time.Minute},
		"https://a?ca=c.pem&cert=x&key=y&prefix=/a/b/&compact=0": {Endpoints: []string{"https://a:2379"}, Prefix: "/a/b", CA: "c.pem", Cert: "x", Key: "y"},
		"http://a?compact=1h": {Endpoints: []string{"http://a:2379"}, Prefix: "/oncegate", Compact: time.Hour},
	} {
		got, err := Parse(in)
		if err != nil {
			t.Errorf("%s: %v", in, err)
		} else if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", in, d)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for in, want := range map[string]string{
		"":                              "address 1: must begin with http:// or https://",
		"http://a,":                     "address 2: must begin with http:// or https://",
		"etcd://a":                      "address 1: must begin",
		"http://:2379":                  "address 1: has no host",
		"http://a:x":                    "address 1: is no URL",
		"http://a,http://b:65536":       `address 2: port "65536": must be 1 to 65535`,
		"http://a:0":                    `address 1: port "0"`,
		"http://a/b":                    "address 1: must end after the port",
		"http://a,https://b":            "address 2: must have the scheme of the first",
		"http://u:secret@a,http://v@b":  "address 2: must have the same user",
		"http://:secret@a":              "address 1: the user has no name",
		"http://a?prefix=x":             `parameter prefix "x"`,
		"http://a?prefix=/":             `parameter prefix "/"`,
		"http://a?prefix=/a%20b":        `parameter prefix "/a b"`,
		"http://a?prefix=/a&prefix=/b":  "parameter prefix: is given 2 times",
		"http://a?compact=1s":           `parameter compact "1s"`,
		"http://a?compact=x":            `parameter compact "x"`,
		"http://a?timeout=1s":           `parameter "timeout": must be one of`,
		"http://a?ca=x":                 "need addresses that begin with https://",
		"https://a?cert=x":              "must be given together",
		"http://u:secret@a?%zz":         "malformed",
		strings.Repeat("http://a,", 40): "at most 32",
	} {
		if _, err := Parse(in); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("http://u:p@a:1,http://b?prefix=/x&compact=1h")
	f.Fuzz(func(t *testing.T, in string) {
		c, err := Parse(in)
		if err == nil && (len(c.Endpoints) == 0 || !strings.HasPrefix(c.Prefix, "/") || strings.HasSuffix(c.Prefix, "/")) {
			t.Errorf("%q: %+v", in, c)
		}
	})
}
