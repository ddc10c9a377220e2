package settings

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFileBytes bounds the file --config.
const maxFileBytes = 1 << 20

// fileSettings are what the file --config says: the values of each flag, several for one that may be repeated.
type fileSettings map[string][]string

// readFile reads the file --config: YAML, a mapping from names of flags to their values. It checks the names; the values are
// checked as those of flags are.
func readFile(name string) (fileSettings, error) {
	all := new(Settings).all() // a setting that a flag or variable decides is checked, too
	f, err := os.Open(name)
	if err != nil {
		return nil, Usagef("--config %q: must be a file that can be read%s", name, because(err))
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, Usagef("--config %q: must be a file that can be read%s", name, because(err))
	}
	if len(b) > maxFileBytes {
		return nil, Usagef("--config %q: must have at most %d bytes", name, maxFileBytes)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(b))
	var document, another yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil, nil // empty
	} else if err != nil {
		return nil, Usagef("--config %q: %s", name, strings.ReplaceAll(err.Error(), "\n", " "))
	}
	if err := decoder.Decode(&another); !errors.Is(err, io.EOF) {
		return nil, Usagef("--config %q: must be one document", name)
	}
	top := document.Content[0]
	if top.Tag == "!!null" {
		return nil, nil // nothing but comments
	}
	if top.Kind != yaml.MappingNode {
		return nil, Usagef("--config %q: line %d: must be lines NAME: VALUE with the names of flags", name, top.Line)
	}
	values := make(fileSettings)
	for i := 0; i < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		at := slices.IndexFunc(all, func(s setting) bool { return s.name == key.Value })
		switch {
		case key.Kind != yaml.ScalarNode || at < 0 || key.Value == configFlag:
			return nil, Usagef("--config %q: line %d: %q: must be the name of a flag without the hyphens in front, see oncegate serve --help", name, key.Line, key.Value)
		case values[key.Value] != nil:
			return nil, Usagef("--config %q: line %d: %s: must be there once", name, key.Line, key.Value)
		}
		items := []*yaml.Node{value}
		if value.Kind == yaml.SequenceNode && all[at].repeated {
			items = value.Content
		}
		values[key.Value] = []string{} // an empty list is no value
		for _, v := range items {
			allowed := "must be one value"
			if all[at].repeated {
				allowed = "must be one value, or a list of values"
			}
			if v.Kind != yaml.ScalarNode || v.Tag == "!!null" {
				return nil, Usagef("--config %q: line %d: %s %q: %s", name, v.Line, key.Value, v.Value, allowed)
			}
			if err := all[at].parse(v.Value); err != nil {
				return nil, Usagef("--config %q: line %d: %s %q: %v", name, v.Line, key.Value, v.Value, err)
			}
			values[key.Value] = append(values[key.Value], v.Value)
		}
	}
	return values, nil
}
