// Package openapitest checks requests and answers of tests against the description of the manager's API.
package openapitest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/openapi"
)

// Exchange is a request and its answer.
type Exchange struct {
	Method, Path string // with the query
	RequestType  string
	Request      string
	Status       int
	Header       http.Header
	Answer       string
}

// Description is the parsed description.
type Description struct {
	doc        map[string]any
	operations []operation

	mu       sync.Mutex // over schemas: a compiler is for one goroutine
	compiler *jsonschema.Compiler
	schemas  map[string]*jsonschema.Schema // by pointer in the document
}

type operation struct {
	method, path string
	segments     []string
	pointer      string // JSON pointer
	item, op     map[string]any
}

// Load returns the description, parsed once for all tests of a program.
var Load = sync.OnceValues(load)

const location = "openapi.json"

func load() (*Description, error) {
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(openapi.Document()))
	if err != nil {
		return nil, err
	}
	d := &Description{doc: parsed.(map[string]any), compiler: jsonschema.NewCompiler(), schemas: map[string]*jsonschema.Schema{}}
	d.compiler.DefaultDraft(jsonschema.Draft2020)
	d.compiler.AssertFormat()
	d.compiler.AssertContent()
	if err := d.compiler.AddResource(location, parsed); err != nil {
		return nil, err
	}
	for path, item := range d.doc["paths"].(map[string]any) {
		item := item.(map[string]any)
		for method, op := range item {
			if method == "parameters" {
				continue
			}
			d.operations = append(d.operations, operation{
				method: strings.ToUpper(method), path: path, segments: strings.Split(path, "/"),
				pointer: "/paths/" + escape(path) + "/" + method, item: item, op: op.(map[string]any),
			})
		}
	}
	// Literal segments come before parameters: /v1/jobs/stats before /v1/jobs/{id}.
	slices.SortFunc(d.operations, func(a, b operation) int {
		return strings.Compare(strings.ReplaceAll(a.path, "{", "~"), strings.ReplaceAll(b.path, "{", "~"))
	})
	return d, nil
}

func escape(segment string) string {
	return strings.ReplaceAll(strings.ReplaceAll(segment, "~", "~0"), "/", "~1")
}

// Operations are "METHOD /path" of all operations.
func (d *Description) Operations() []string {
	var all []string
	for i := range d.operations {
		all = append(all, d.operations[i].method+" "+d.operations[i].path)
	}
	return all
}

// Status is the response that an operation declares for a status, and whether it declares one.
func (d *Description) Status(method, path string, status int) (response map[string]any, declared bool) {
	for i := range d.operations {
		if o := &d.operations[i]; o.method == method && o.path == path {
			response, _, declared = d.resolve(o.op["responses"].(map[string]any), "", strconv.Itoa(status))
		}
	}
	return response, declared
}

// Check reports what of an exchange the description does not say. An exchange with a path or method that the description does not
// have must be refused with 404 or 405.
func (d *Description) Check(x *Exchange) error {
	path, query, _ := strings.Cut(x.Path, "?")
	o := d.find(x.Method, path)
	if o == nil {
		if x.Status == 404 || x.Status == 405 || x.Status == 401 || x.Status >= 500 {
			return nil
		}
		return fmt.Errorf("%s %s was answered %d and is not described", x.Method, path, x.Status)
	}
	response, pointer, ok := d.resolve(o.op["responses"].(map[string]any), o.pointer+"/responses", strconv.Itoa(x.Status))
	if !ok {
		return fmt.Errorf("%s %s: status %d is not declared", o.method, o.path, x.Status)
	}
	if err := d.checkAnswer(x, response, pointer); err != nil {
		return fmt.Errorf("%s %s: answer %d: %w", o.method, o.path, x.Status, err)
	}
	if x.Status < 300 { // a request that was accepted must be one that the description allows
		if err := d.checkRequest(x, o, query); err != nil {
			return fmt.Errorf("%s %s: accepted with %d: %w", o.method, o.path, x.Status, err)
		}
	}
	return nil
}

func (d *Description) find(method, path string) *operation {
	if method == "HEAD" {
		method = "GET"
	}
	segments := strings.Split(path, "/")
	for i := range d.operations {
		o := &d.operations[i]
		if o.method == method && slices.EqualFunc(o.segments, segments, func(want, got string) bool {
			return want == got || strings.HasPrefix(want, "{") && got != ""
		}) {
			return o
		}
	}
	return nil
}

// resolve returns the member of an object and its JSON pointer, and follows a $ref.
func (d *Description) resolve(in map[string]any, at, name string) (member map[string]any, pointer string, ok bool) {
	member, ok = in[name].(map[string]any)
	pointer = at + "/" + escape(name)
	ref, is := member["$ref"].(string)
	if !is {
		return member, pointer, ok
	}
	pointer = strings.TrimPrefix(ref, "#")
	member = d.doc
	for _, segment := range strings.Split(pointer[1:], "/") {
		if member, ok = member[segment].(map[string]any); !ok {
			return nil, pointer, false
		}
	}
	return member, pointer, true
}

func (d *Description) checkAnswer(x *Exchange, response map[string]any, pointer string) error {
	content, _ := response["content"].(map[string]any)
	media, _, _ := strings.Cut(x.Header.Get("content-type"), ";")
	if media == "application/vnd.oncegate.v1" || x.Method == "HEAD" {
		return nil // package api describes the raw form
	}
	if _, ok := content[media]; !ok {
		return fmt.Errorf("content type %q is not declared", media)
	}
	if media == "text/plain" {
		return nil
	}
	if err := d.validate(pointer+"/content/"+escape(media)+"/schema", x.Answer); err != nil || media != api.ContentTypeProblem {
		return err
	}
	var problem struct{ Code string }
	if err := json.Unmarshal([]byte(x.Answer), &problem); err != nil {
		return err
	}
	if codes := Codes(response); !slices.Contains(codes, problem.Code) {
		return fmt.Errorf("code %q is not among %q", problem.Code, codes)
	}
	return nil
}

// Codes are the codes of problems that a response may have.
func Codes(response map[string]any) []string {
	var at any = response
	for _, name := range []string{"content", api.ContentTypeProblem, "schema", "properties", "code", "x-extensible-enum"} {
		m, _ := at.(map[string]any)
		at = m[name]
	}
	list, _ := at.([]any)
	var codes []string
	for _, v := range list {
		code, _ := v.(string)
		codes = append(codes, code)
	}
	return codes
}

func (d *Description) checkRequest(x *Exchange, o *operation, query string) error {
	if err := d.checkQuery(o, query); err != nil {
		return err
	}
	body, pointer, ok := d.resolve(o.op, o.pointer, "requestBody")
	if !ok {
		return nil
	}
	if x.Request == "" {
		if required, _ := body["required"].(bool); required {
			return fmt.Errorf("without the body that is required")
		}
		return nil
	}
	media, _, _ := strings.Cut(strings.ToLower(x.RequestType), ";")
	if media == "" {
		media = "application/json" // what the manager takes a body without a type for
	}
	if _, ok := body["content"].(map[string]any)[media]; !ok {
		return fmt.Errorf("content type %q is not declared", media)
	}
	if media != "application/json" {
		return nil
	}
	return d.validate(pointer+"/content/"+escape(media)+"/schema", x.Request)
}

func (d *Description) checkQuery(o *operation, query string) error {
	given, err := url.ParseQuery(query)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, of := range []map[string]any{o.item, o.op} {
		list, _ := of["parameters"].([]any)
		for i := range list {
			p, _, _ := d.resolve(map[string]any{"p": list[i]}, "", "p")
			if p["in"] == "query" {
				known[p["name"].(string)] = true
			}
		}
	}
	for name := range given {
		if !known[name] {
			return fmt.Errorf("query parameter %q is not declared", name)
		}
	}
	return nil
}

func (d *Description) validate(pointer, text string) error {
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	schema := d.schemas[pointer]
	if schema == nil {
		if schema, err = d.compiler.Compile(location + "#" + url.PathEscape(pointer)); err != nil {
			return err
		}
		d.schemas[pointer] = schema
	}
	if err := schema.Validate(value); err != nil {
		return fmt.Errorf("%s: %w", clip(text), err)
	}
	return nil
}

func clip(s string) string {
	if len(s) > 300 {
		return s[:300] + "..."
	}
	return s
}

// Valid reports the first schema of the description that is none.
func (d *Description) Valid() error {
	var check func(pointer string, v any) error
	check = func(pointer string, v any) error {
		m, ok := v.(map[string]any)
		if !ok {
			if list, ok := v.([]any); ok {
				for i := range list {
					if err := check(pointer+"/"+strconv.Itoa(i), list[i]); err != nil {
						return err
					}
				}
			}
			return nil
		}
		if ref, ok := m["$ref"].(string); ok {
			if _, _, ok := d.resolve(map[string]any{"x": map[string]any{"$ref": ref}}, "", "x"); !ok {
				return fmt.Errorf("%s: nothing is at %s", pointer, ref)
			}
		}
		for name, member := range m {
			at := pointer + "/" + escape(name)
			if name == "schema" {
				if _, err := d.compiler.Compile(location + "#" + url.PathEscape(at)); err != nil {
					return err
				}
				continue
			}
			if err := check(at, member); err != nil {
				return err
			}
		}
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return check("", any(d.doc))
}
