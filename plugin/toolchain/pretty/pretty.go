// Package pretty stands in for github.com/tidwall/pretty where the gate is built as
// wasm. gjson imports that package for its path modifiers @pretty and @ugly, and with
// it come encoding/json, fmt and most of reflection: a quarter of the module's size
// and of the time that every worker takes to compile it.
//
// The two modifiers change nothing but whitespace between tokens. What the gate reads
// with gjson are single strings and numbers, which have none inside, so here they
// return the JSON as it is.
package pretty

// Options are those of the real package, as far as gjson sets them.
type Options struct {
	Width          int
	Prefix, Indent string
	SortKeys       bool
}

// DefaultOptions is what gjson starts from.
var DefaultOptions = &Options{}

// Pretty returns json.
func Pretty(json []byte) []byte { return json }

// PrettyOptions returns json.
func PrettyOptions(json []byte, _ *Options) []byte { return json }

// Ugly returns json.
func Ugly(json []byte) []byte { return json }
