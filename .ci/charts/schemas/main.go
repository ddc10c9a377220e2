// Command schemas writes the JSON schemas that the tests validate objects with, in the layout of kubeconform:
//
//	schemas DIR OPENAPI.json CRD.yaml...
//
// OPENAPI.json is Kubernetes' api/openapi-spec/swagger.json. A CRD file may have several definitions. Only the kinds in `kinds` are
// written, without descriptions, and so that an object with an unknown field is refused.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// kinds are those that the chart and the files in envoy have.
var kinds = strings.Fields(`ConfigMap Deployment NetworkPolicy PodDisruptionBudget Secret Service ServiceAccount StatefulSet
	Certificate
	DestinationRule EnvoyFilter ServiceEntry TrafficExtension VirtualService WasmPlugin
	ClientTrafficPolicy EnvoyExtensionPolicy EnvoyPatchPolicy`)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "schemas:", err)
		os.Exit(1)
	}
}

func run(dir, openapi string, crds []string) error {
	var api struct {
		Definitions map[string]map[string]any `json:"definitions"`
	}
	text, err := os.ReadFile(openapi)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &api); err != nil {
		return err
	}
	for _, d := range api.Definitions {
		gvks, _ := d["x-kubernetes-group-version-kind"].([]any)
		for _, g := range gvks {
			gvk := g.(map[string]any)
			version, kind := gvk["version"].(string), gvk["kind"].(string)
			if version == "v1" && slices.Contains(kinds, kind) { // other kinds may contain themselves
				if err := write(dir, gvk["group"].(string), version, kind, strict(d, api.Definitions)); err != nil {
					return err
				}
			}
		}
	}
	for _, file := range crds {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for doc := range strings.SplitSeq(string(text), "\n---\n") {
			var crd struct {
				Spec struct {
					Group string `json:"group"`
					Names struct {
						Kind string `json:"kind"`
					} `json:"names"`
					Versions []struct {
						Name   string `json:"name"`
						Schema struct {
							OpenAPIV3Schema map[string]any `json:"openAPIV3Schema"`
						} `json:"schema"`
					} `json:"versions"`
				} `json:"spec"`
			}
			if err := yaml.Unmarshal([]byte(doc), &crd); err != nil || crd.Spec.Names.Kind == "" {
				continue // a Helm template around it, or another kind
			}
			for _, v := range crd.Spec.Versions {
				schema := strict(v.Schema.OpenAPIV3Schema, nil).(map[string]any)
				if p, ok := schema["properties"].(map[string]any); ok {
					p["apiVersion"], p["kind"] = map[string]any{"type": "string"}, map[string]any{"type": "string"}
					p["metadata"] = map[string]any{"type": "object"}
				}
				if err := write(dir, crd.Spec.Group, v.Name, crd.Spec.Names.Kind, schema); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func write(dir, group, version, kind string, schema any) error {
	if !slices.Contains(kinds, kind) || version == "v1beta1" || version == "v1alpha3" && kind != "EnvoyFilter" {
		return nil
	}
	text, err := json.Marshal(schema)
	if err != nil {
		return err
	}
	name := kind + "-"
	if first, _, _ := strings.Cut(group, "."); first != "" {
		name += first + "-"
	}
	return os.WriteFile(filepath.Join(dir, strings.ToLower(name+version)+".json"), append(text, '\n'), 0o644)
}

// strict copies a schema, with what it refers to put in.
func strict(s any, definitions map[string]map[string]any) any {
	switch s := s.(type) {
	case []any:
		out := make([]any, len(s))
		for i, e := range s {
			out[i] = strict(e, definitions)
		}
		return out
	case map[string]any:
		if ref, ok := s["$ref"].(string); ok {
			return strict(definitions[strings.TrimPrefix(ref, "#/definitions/")], definitions)
		}
		if f := s["format"]; f == "int-or-string" || s["x-kubernetes-int-or-string"] == true {
			return map[string]any{"type": []any{"integer", "string"}}
		}
		out := map[string]any{}
		for k, v := range s {
			if k == "properties" { // whose names are not keywords
				properties := map[string]any{}
				for name, p := range v.(map[string]any) {
					properties[name] = strict(p, definitions)
				}
				out[k] = properties
			} else if k != "description" && k != "format" && k != "default" && !strings.HasPrefix(k, "x-kubernetes-") {
				out[k] = strict(v, definitions)
			}
		}
		if _, ok := out["properties"]; ok && out["additionalProperties"] == nil && s["x-kubernetes-preserve-unknown-fields"] != true {
			out["additionalProperties"] = false
		}
		if s["nullable"] == true {
			delete(out, "nullable")
		}
		return out
	}
	return s
}
