package config

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// everyConfig are configurations that together use each field.
func everyConfig() []string {
	list := []string{
		"", everyField,
		`{"match": [{"path": "/a"}, {"path_pattern": "/a/*/**", "methods": ["*"]}, {"path_prefix": "/b", "fingerprint": {"query": ["a"]}}, {"fingerprint": {"query": "none"}}, {"fingerprint": {"headers": ["x"]}}]}`,
		`{"mode": "body", "key": {"sources": ["header:a", "json:b.c?"]}, "fingerprint": {"include": ["a.b\\.c", "d.0"], "exclude": ["a.e"]}}`,
		`{"key": {"format": "pattern", "pattern": "[a-z]{3}-*"}, "scope": ["header:a?", "certificate:uri_san?", "jwt:sub", "path"], "ledger": "none"}`,
		`{"manager": {"shards": ["a", "b"], "previous_shards": ["a"]}, "outcomes": {"hold": ["502"]}, "resumable": true}`,
		`{"mode": "body", "problems": {"body": {"a": "{id}", "b": [{"c": "{status} {title}"}], "d": "{status}"}, "status": {"*": 400, "request-pending": 503}}}`,
	}
	list = append(list, `{"problems": {"body": {"a": [`+strings.Repeat("[1, 2],", 500)+`0]}}}`)
	for i := range protocols {
		list = append(list, `{"protocol": "`+protocols[i].name+`"}`, `{"match": [{"path": "/x", "protocol": "`+protocols[i].name+`"}, {}]}`)
	}
	return list
}

// TestExplanationIsTheSameConfiguration: what Explain prints means the same, and leaves nothing to defaults.
func TestExplanationIsTheSameConfiguration(t *testing.T) {
	for _, text := range everyConfig() {
		explained, err := Explain([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		want := mustParse(t, text)
		got, err := Parse(explained)
		if err != nil {
			t.Errorf("%s: %v\n%s", text, err, explained)
			continue
		}
		for _, c := range []*Config{want, got} {
			for i := range c.rules {
				p := &c.rules[i].route.Problems
				p.Body = strings.ReplaceAll(p.Body, "\n", "")
				p.Body = strings.Join(strings.Fields(p.Body), "")
				slices.SortFunc(p.changed, func(a, b problemChange) int { return strings.Compare(string(a.code), string(b.code)) })
			}
		}
		want.ScopeSecret, want.Manager.AuthToken = secret(want.ScopeSecret), secret(want.Manager.AuthToken)
		if !sameConfig(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", text, got, want)
		}
		if again, err := Explain(explained); err != nil || !bytes.Equal(again, explained) {
			t.Errorf("%s: explained twice: %v\n%s\n%s", text, err, again, explained)
		}
	}
	out, err := Explain([]byte(`{"scope_secret": "0123456789abcdef", "manager": {"auth_token": "hush"}}`))
	if err != nil || bytes.Contains(out, []byte("hush")) || bytes.Contains(out, []byte("0123456789abcdef")) || !bytes.Contains(out, []byte(hidden)) {
		t.Errorf("secrets: %v\n%s", err, out)
	}
	if _, err := Explain([]byte(`{"mode": "x"}`)); err == nil || err.Error() != `mode: "x"; allowed: "headers", "body"` {
		t.Errorf("a mistake: %v", err)
	}
}

// TestRuleHasOneProtocol: nothing of the top level's protocol is left in a rule with another one. The top level's own fields are.
func TestRuleHasOneProtocol(t *testing.T) {
	for _, top := range protocols {
		for _, own := range protocols {
			const fields = `"protocol": "%", "anonymous": "shared", "max_waiters": 7, "failure_mode": "open"`
			rule := `, "match": [{"path_prefix": "/", "protocol": "` + own.name + `"}]}`
			got := mustParse(t, "{"+strings.Replace(fields, "%", top.name, 1)+rule)
			want := mustParse(t, "{"+strings.TrimPrefix(fields, `"protocol": "%", `)+rule)
			if !sameConfig(got, want) {
				t.Errorf("%s in %s: got %+v\nwant %+v", own.name, top.name, got, want)
			}
		}
	}
}

// TestExplanationHasEveryField compares the fields of an explanation with those of the parser.
func TestExplanationHasEveryField(t *testing.T) {
	var got map[string]json.RawMessage
	explained, err := Explain([]byte(everyField))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(explained, &got); err != nil {
		t.Fatal(err)
	}
	var rules []map[string]json.RawMessage
	if err := json.Unmarshal(got["match"], &rules); err != nil {
		t.Fatal(err)
	}
	for _, name := range parserFields(t, `{"match": [%]}`) {
		if _, ok := rules[0][name]; !ok && name != "protocol" && !strings.HasPrefix(name, "path") {
			t.Errorf("the explanation has no %s", name)
		}
	}
}

// TestProblemCodesAreThoseOfTheGate: each code that the gate or the readers of requests name can be configured.
func TestProblemCodesAreThoseOfTheGate(t *testing.T) {
	known := map[string]bool{}
	values := map[string]string{}
	text, err := os.ReadFile("../../manager/api/problem.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(Code\w+)\s+Code = "([a-z-]+)"`).FindAllStringSubmatch(string(text), -1) {
		values[m[1]] = m[2]
	}
	for _, code := range problemCodes {
		known[string(code)] = true
	}
	found := 0
	for _, pattern := range []string{"../gate/*.go", "../request/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`Code: +api\.(Code\w+)|(?:Error|refuse)\w*\{api\.(Code\w+)`).FindAllStringSubmatch(string(text), -1) {
				found++
				if code := values[m[1]+m[2]]; code == "" || !known[code] {
					t.Errorf("%s: %s cannot be configured", name, m[1]+m[2])
				}
			}
		}
	}
	if found < 15 {
		t.Errorf("only %d codes found", found)
	}
}

// TestProblemBodies: placeholders take what they stand for, as JSON.
func TestProblemBodies(t *testing.T) {
	c := mustParse(t, `{"problems": {"type_base": "a:", "body": {"{x": "{code}|{type}|{title}|{detail}|{status}", "n": "{status}", "id": ["{id}", "{Id", "{ id }"]},
		"codes": {"*": "other", "key-required": "no \"key\""}, "types": {"key-required": "t"}, "status": {"*": 599}}}`)
	p := &c.First().Problems
	for _, test := range []struct {
		problem  api.Problem
		id, want string
	}{
		{api.Problem{Status: 400, Code: api.CodeKeyRequired, Title: "a \"b\"\n", Detail: "d"}, `"\u0041"`,
			`{"{x": "no \"key\"|t|a \"b\"\n|d|599", "n": 599, "id": ["\u0041", "{Id", "{ id }"]}`},
		{api.Problem{Status: 409, Code: api.CodePending}, "", `{"{x": "other|a:request-pending|||599", "n": 599, "id": [null, "{Id", "{ id }"]}`},
	} {
		got := string(p.AppendBody([]byte("<"), &test.problem, test.id))
		if want := "<" + test.want; got != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
	}
}

// TestLifetimeIsTheShortest: clients must not use a key for longer than any rule remembers it.
func TestLifetimeIsTheShortest(t *testing.T) {
	c := mustParse(t, `{"match": [{"protocol": "iceberg"}, {"protocol": "iceberg", "committed_ttl_seconds": 5}, {"protocol": "iceberg", "lifetime_path": ""}]}`)
	if r := c.Lifetime("/v1/config?a"); r == nil || r.CommittedTTL != 5*time.Second {
		t.Errorf("got %+v", r)
	}
	if r := c.Lifetime("/v1/configs"); r != nil {
		t.Errorf("got %+v", r)
	}
}
