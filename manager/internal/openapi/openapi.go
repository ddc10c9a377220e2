// Package openapi holds the description of the manager's API in OpenAPI 3.1. The YAML files beside this one are its source, one
// for each part of the API.
package openapi

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"strconv"
	"sync"

	"sigs.k8s.io/yaml"
)

//go:embed *.yaml
var files embed.FS

// base is the file that the others are added to.
const base = "openapi.yaml"

// always are the responses that every call may get, by the name of the component.
var always = map[int]string{
	400: "Invalid", 401: "Unauthorized", 403: "Forbidden", 408: "Timeout", 413: "TooLarge", 421: "Misdirected",
	431: "HeadersTooLarge", 500: "Internal", 503: "Unavailable",
}

// open are those of calls that need no credentials. Their bodies are not read.
var open = map[int]string{400: "Invalid", 431: "HeadersTooLarge", 500: "Internal"}

// Document returns the description as one JSON document. The caller must not change it.
var Document = sync.OnceValue(func() []byte {
	doc, err := merge()
	if err != nil {
		panic(err) // the files are part of the program, and the tests read them
	}
	return doc
})

type object = map[string]any

// merge puts the files together and declares the responses that every call may get.
func merge() ([]byte, error) {
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return nil, err
	}
	doc, err := read(base)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if name == base {
			continue
		}
		part, err := read(name)
		if err != nil {
			return nil, err
		}
		if err := add(doc, part); err != nil {
			return nil, fmt.Errorf("openapi: %s: %w", name, err)
		}
	}
	for _, item := range child(doc, "paths") {
		for method, op := range item.(object) {
			if op, ok := op.(object); ok && method != "parameters" {
				declare(op)
			}
		}
	}
	return json.Marshal(doc)
}

func read(name string) (object, error) {
	b, err := files.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var doc object
	if err := yaml.UnmarshalStrict(b, &doc); err != nil {
		return nil, fmt.Errorf("openapi: %s: %w", name, err)
	}
	return doc, nil
}

// add adds the paths and components of part. A name that is there already is an error.
func add(doc, part object) error {
	if err := union(child(doc, "paths"), child(part, "paths")); err != nil {
		return err
	}
	components := child(doc, "components")
	for kind := range child(part, "components") {
		if err := union(child(components, kind), child(child(part, "components"), kind)); err != nil {
			return err
		}
	}
	return nil
}

func union(to, from object) error {
	for name := range from {
		if _, there := to[name]; there {
			return fmt.Errorf("%s is there twice", name)
		}
	}
	maps.Copy(to, from)
	return nil
}

// child is the object with that name, which is made if it is missing.
func child(of object, name string) object {
	c, ok := of[name].(object)
	if !ok {
		c = object{}
		of[name] = c
	}
	return c
}

// declare adds what every call may get, unless the call says it itself.
func declare(op object) {
	responses := maps.Clone(child(op, "responses"))
	op["responses"] = responses
	common := always
	if _, said := op["security"]; said {
		common = open
	}
	for status, name := range common {
		put(responses, status, name)
	}
	if _, has := op["requestBody"]; has {
		put(responses, 415, "UnsupportedMedia")
	}
	if common[421] != "" {
		op["parameters"] = append(parameters(op), object{"$ref": "#/components/parameters/shard"})
	}
}

func parameters(op object) []any {
	list, _ := op["parameters"].([]any)
	return append([]any(nil), list...)
}

func put(responses object, status int, name string) {
	key := strconv.Itoa(status)
	if _, said := responses[key]; !said {
		responses[key] = object{"$ref": "#/components/responses/" + name}
	}
}
