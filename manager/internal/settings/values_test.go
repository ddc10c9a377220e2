package settings

import (
	"strings"
	"testing"
)

func TestValuesHoldNoPasswords(t *testing.T) {
	env := func(name string) (string, bool) {
		if name == "IDEMPOTENCY_PENDING_TTL_SECONDS" {
			return "7", true
		}
		return "", false
	}
	s, err := Parse(env, []string{"--store", "redis", "--store-dsn", "redis://u:geheim@127.0.0.1/0", "--listen", "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]Value)
	for _, v := range s.Values() {
		got[v.Name] = v
		if strings.Contains(v.Value, "geheim") {
			t.Errorf("%+v", v)
		}
	}
	for _, want := range []Value{
		{"store-dsn", "", "flag", true}, {"listen", "127.0.0.1:1", "flag", false}, {"pending-ttl-seconds", "7", "IDEMPOTENCY_PENDING_TTL_SECONDS", false},
		{"committed-ttl-seconds", "300", "", false}, {"auth-token-file", "", "", false},
	} {
		if got[want.Name] != want {
			t.Errorf("%+v, want %+v", got[want.Name], want)
		}
	}
	if len(got) != len(s.all()) {
		t.Errorf("%d values of %d settings", len(got), len(s.all()))
	}
}
