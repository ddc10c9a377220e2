package languages

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/openapi"
	"github.com/oncegate/oncegate/manager/managertest"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

const typescript = "../../../client/typescript"

// TestTypeScript runs the client's own tests, as make built them.
func TestTypeScript(t *testing.T) {
	deep.Only(t)
	files, err := filepath.Glob("../../../../build/typescript/test/*.test.js")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests of the TypeScript client in build/typescript (%v): make build/typescript", err)
	}
	cmd := exec.CommandContext(t.Context(), "node", append([]string{"--test"}, files...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("node --test: %v\n%s", err, out)
	}
}

// TestTypeScriptReadme runs the README's program against a manager, twice: the second time, the work is done.
func TestTypeScriptReadme(t *testing.T) {
	deep.Only(t)
	readme, err := os.ReadFile(typescript + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(readme), "```js\n")
	program, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("README.md has no program")
	}
	m := managertest.Start(t, managertest.Options{})
	for _, want := range []string{"complete { sent: 'ann' }\npaid\n", "complete { sent: 'ann' }\n"} {
		if got := runNode(t, program, nil, "ONCEGATE_URL="+m.URL); got != want {
			t.Errorf("it printed %q, want %q", got, want)
		}
	}
}

// runNode runs a program that imports the client, and returns what it prints.
func runNode(t *testing.T, program string, input io.Reader, env ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp("../../../../build/typescript", "program-") // where the name of the package leads to it
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "program.mjs")
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", file)
	cmd.Env, cmd.Stdin = append(os.Environ(), env...), input
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("node: %v", err)
	}
	return string(out)
}

// TestTypeScriptLeavesOverTLS: a worker that stops ends its claim over TLS as well, gets the answer, and hands the job back.
func TestTypeScriptLeavesOverTLS(t *testing.T) {
	deep.Only(t)
	handedBack := make(chan string, 1)
	input, claimed := io.Pipe()
	defer claimed.Close()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/v1/jobs/claim" {
			handedBack <- string(body)
			fmt.Fprint(w, `{"id":"a","state":"queued"}`)
			return
		}
		_ = claimed.Close() // the end of the program's input
		select {
		case <-r.Context().Done():
		case <-time.After(patience):
			t.Error("the worker did not leave")
		}
		fmt.Fprint(w, `{"jobs":[{"id":"a","function":"f","state":"active","attempt":1,"max_attempts":3,"lease":{"token":"t","expires_in_ms":1000}}]}`)
	}))
	defer server.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	const program = `import { Client } from "@oncegate/client";
const stop = new AbortController();
process.stdin.resume().once("end", () => stop.abort());
await new Client({ url: process.env.ONCEGATE_URL }).worker({ handlers: { f: () => console.log("ran") } }).run(stop.signal);
`
	if got := runNode(t, program, input, "ONCEGATE_URL="+server.URL, "NODE_EXTRA_CA_CERTS="+ca); got != "" {
		t.Errorf("it printed %q", got)
	}
	select {
	case body := <-handedBack:
		if want := `{"lease_token":"t","delay_ms":0,"uncounted":true}`; body != want {
			t.Errorf("the worker reported %s, want %s", body, want)
		}
	default:
		t.Error("the worker did not hand the job back")
	}
}

// shape is an interface of the TypeScript client and where the API's description has its members.
type shape struct {
	at      string // "/" between names
	answer  bool   // from the manager; otherwise sent to it
	more    []string
	without []string
}

const (
	jsonBody = "/content/application~1json/schema"
	schemas  = "components/schemas/"
	// functions is the page of functions.
	functions = "paths/~1v1~1functions/get/responses/200" + jsonBody
)

var shapes = map[string]shape{
	"Job":           {at: schemas + "Job", answer: true},
	"AttemptError":  {at: schemas + "Job/properties/errors/items", answer: true},
	"Lease":         {at: schemas + "Job/properties/lease", answer: true},
	"Dedup":         {at: schemas + "Submission/properties/dedup"},
	"Submission":    {at: schemas + "SubmissionItem", more: []string{"traceparent"}}, // a header
	"Submitted":     {at: schemas + "Job", answer: true, more: []string{"replayed"}}, // a header
	"Event":         {at: "paths/~1v1~1events~1{name}/post/requestBody" + jsonBody, more: []string{"name", "idempotency_key", "traceparent"}, without: []string{"key"}},
	"Sent":          {at: schemas + "Sent", answer: true, more: []string{"replayed"}}, // a header
	"Batch":         {at: "paths/~1v1~1batches/post/requestBody" + jsonBody, more: []string{"idempotency_key", "traceparent"}},
	"BatchInfo":     {at: schemas + "Batch", answer: true, more: []string{"replayed"}}, // a header
	"ListQuery":     {at: "paths/~1v1~1jobs/get/parameters"},
	"JobPage":       {at: "paths/~1v1~1jobs/get/responses/200" + jsonBody, answer: true},
	"PageQuery":     {at: "paths/~1v1~1schedules/get/parameters"},
	"ScheduleSpec":  {at: schemas + "ScheduleSpec"},
	"Schedule":      {at: schemas + "Schedule", answer: true},
	"SchedulePage":  {at: "paths/~1v1~1schedules/get/responses/200" + jsonBody, answer: true},
	"Limits":        {at: schemas + "Limits"},
	"Rate":          {at: schemas + "Limits/properties/rate"},
	"FunctionInfo":  {at: functions + "/properties/functions/items", answer: true},
	"FunctionRates": {at: functions + "/properties/functions/items/properties/last_minute", answer: true},
	"FunctionPage":  {at: functions, answer: true},
	"ClaimRequest":  {at: "paths/~1v1~1jobs~1claim/post/requestBody" + jsonBody},
	"Beat":          {at: "paths/~1v1~1jobs~1{id}~1heartbeat/post/responses/200" + jsonBody, answer: true},
	// The id is in the path, but of one that ends many.
	"FinishRequest":  {at: "paths/~1v1~1jobs~1finish/post/requestBody" + jsonBody + "/properties/finishes/items"},
	"RetryRequest":   {at: "paths/~1v1~1jobs~1{id}~1retry/post/requestBody" + jsonBody},
	"Attempt":        {at: schemas + "Release"},
	"ReserveRequest": {at: schemas + "Reserve"},
	"RenewRequest":   {at: schemas + "Renew"},
	"OutcomeRequest": {at: schemas + "Finish"},
	"Answer":         {at: schemas + "Result"},
	"RecordedAnswer": {at: schemas + "Result", answer: true},
	"Reserved":       {at: schemas + "ReserveReply", answer: true, without: []string{"result"}},
	"Recorded":       {at: schemas + "ReserveReply", answer: true, without: []string{"token"}},
	"Pending":        {at: schemas + "ReserveReply", answer: true, more: []string{"retryAfterMs"}, without: []string{"token", "result"}},
	"Entry":          {at: schemas + "Entry", answer: true, without: []string{"status", "body_bytes"}}, // in lists
}

// drawn are members that the API requires and a caller of the client may leave out.
var drawn = map[string]string{"ReserveRequest": "token"}

// promised are members that the client checks, or adds, before it returns an answer.
var promised = map[string][]string{
	"Submitted": {"replayed"}, "BatchInfo": {"replayed"}, "Sent": {"replayed"}, "RecordedAnswer": {"headers", "body"}, "Pending": {"expires_in_ms", "retryAfterMs"},
	"Reserved": {"token", "expires_in_ms"}, "Recorded": {"expires_in_ms", "result"},
}

// TestTypeScriptTypes: the client's interfaces have the members of the API's description, and no others.
func TestTypeScriptTypes(t *testing.T) {
	found := interfaces(t, "types.ts")
	for name := range found {
		if _, ok := shapes[name]; !ok {
			t.Errorf("%s: the table of this test lacks it", name)
		}
	}
	doc := document(t)
	for name, s := range shapes {
		got, ok := found[name]
		if !ok {
			t.Errorf("types.ts has no interface %s", name)
			continue
		}
		required := membersAt(t, doc, s.at)
		for _, m := range s.more {
			required[m] = false
		}
		for _, m := range s.without {
			delete(required, m)
		}
		if a, b := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(required)); !slices.Equal(a, b) {
			t.Errorf("%s has the members\n%v, and the API\n%v", name, a, b)
			continue
		}
		for m, must := range required {
			switch {
			case s.answer && got[m] && !must && !slices.Contains(promised[name], m):
				t.Errorf("%s.%s: the API does not promise it", name, m)
			case !s.answer && must && !got[m] && drawn[name] != m:
				t.Errorf("%s.%s: the API requires it", name, m)
			}
		}
	}
	if a, b := union(t, "types.ts", "JobState"), at(t, doc, schemas+"JobState/enum"); fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("JobState is %v, and that of the API %v", a, b)
	}
	problems, err := os.ReadFile("../../../api/problem.go")
	if err != nil {
		t.Fatal(err)
	}
	var codes []string
	for _, m := range regexp.MustCompile(`Code += "([a-z-]+)"`).FindAllStringSubmatch(string(problems), -1) {
		codes = append(codes, m[1])
	}
	if got := union(t, "errors.ts", "ProblemCode"); len(codes) == 0 || !slices.Equal(got, codes) {
		t.Errorf("ProblemCode is %v, and the codes of package api are %v", got, codes)
	}
}

func source(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(typescript, "lib", file))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var (
	interfaceForm = regexp.MustCompile(`(?s)\nexport interface (\w+)(?:<[^{]*>)?(?: extends ([^{]+))? \{\n(.*?)\n\}`)
	memberForm    = regexp.MustCompile(`(?m)^\t(\w+)(\??):`)
	baseForm      = regexp.MustCompile(`^(Partial<)?(?:Omit<)?(\w+)`)
	quotedForm    = regexp.MustCompile(`"([a-z_-]+)"`)
)

// interfaces returns the members of all interfaces of a file, and whether they are required.
func interfaces(t *testing.T, file string) map[string]map[string]bool {
	t.Helper()
	all := map[string]map[string]bool{}
	for _, m := range interfaceForm.FindAllStringSubmatch(source(t, file), -1) {
		name, extends, body := m[1], m[2], m[3]
		all[name] = map[string]bool{}
		if base := baseForm.FindStringSubmatch(extends); base != nil { // which is above it in the file
			for member, required := range all[base[2]] {
				all[name][member] = required && base[1] == ""
			}
		}
		for _, member := range memberForm.FindAllStringSubmatch(body, -1) {
			all[name][member[1]] = member[2] == ""
		}
	}
	return all
}

// union returns the texts of a union type.
func union(t *testing.T, file, name string) (all []string) {
	t.Helper()
	_, rest, ok := strings.Cut(source(t, file), "export type "+name+" =")
	text, _, ended := strings.Cut(rest, ";")
	if !ok || !ended {
		t.Fatalf("%s has no type %s", file, name)
	}
	for _, m := range quotedForm.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

func document(t *testing.T) (doc any) {
	t.Helper()
	if err := json.Unmarshal(openapi.Document(), &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

// at returns what is at a path of names in the description, where ~1 stands for a slash, and follows references.
func at(t *testing.T, doc any, path string) any {
	t.Helper()
	v := doc
	for name := range strings.SplitSeq(path, "/") {
		o, ok := v.(map[string]any)
		if !ok {
			t.Fatalf("the description has nothing at %s", path)
		}
		v = o[strings.ReplaceAll(name, "~1", "/")]
		if o, ok := v.(map[string]any); ok {
			if ref, ok := o["$ref"].(string); ok {
				v = at(t, doc, strings.TrimPrefix(ref, "#/"))
			}
		}
	}
	return v
}

// membersAt returns the members of a schema, or the names of query parameters, and whether they are required.
func membersAt(t *testing.T, doc any, path string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	switch v := at(t, doc, path).(type) {
	case []any:
		for i := range v {
			p := v[i].(map[string]any)
			if ref, ok := p["$ref"].(string); ok {
				p = at(t, doc, strings.TrimPrefix(ref, "#/")).(map[string]any)
			}
			if p["in"] == "query" {
				out[p["name"].(string)] = p["required"] == true
			}
		}
	case map[string]any:
		for name := range v["properties"].(map[string]any) {
			out[name] = false
		}
		required, _ := v["required"].([]any)
		for _, name := range required {
			out[name.(string)] = true
		}
	default:
		t.Fatalf("the description has nothing at %s", path)
	}
	return out
}
